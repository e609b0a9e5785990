import pytest

from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.machine import InvalidTransition
from roundhouse.protocol.messages import AbortRequests, Admitted, Ping, Refused
from roundhouse.protocol.session import (
    ADMIT_S,
    CONNECT_S,
    SILENCE_S,
    TABLE,
    Admission,
    Answer,
    Broken,
    Close,
    Connected,
    DeadlinePassed,
    Deliver,
    Denied,
    Event,
    LinkSession,
    Open,
    Pinged,
    Refusal,
    Requested,
    SendHello,
    SessionState,
)

ADMITTED = Admitted("frontend-1", 7, 0, 1, 2**26)
ABORT = AbortRequests(["a"])

EVENTS: list[Event] = [
    Connected(),
    Admission(ADMITTED),
    Refusal(Refused("model", "no")),
    Pinged(Ping("frontend-1", 0)),
    Requested(ABORT),
    Broken("cut"),
    Denied("not allowed"),
    DeadlinePassed(),
]


def session_in(state: SessionState) -> LinkSession:
    session = LinkSession("tcp://127.0.0.1:1", 100.0)
    match state:
        case SessionState.CONNECTING:
            pass
        case SessionState.GREETED:
            session.on(Connected(), 101.0)
        case SessionState.ADMITTED:
            session.on(Connected(), 101.0)
            session.on(Admission(ADMITTED), 102.0)
        case SessionState.REFUSED:
            session.on(Connected(), 101.0)
            session.on(Refusal(Refused("model", "no")), 102.0)
        case SessionState.CLOSED:
            session.on(Broken("cut"), 101.0)
    assert session.state is state
    return session


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", SessionState)
def test_every_pair_does_what_the_table_says(state: SessionState, event: Event) -> None:
    session = session_in(state)
    after = TABLE.get((state, type(event)))
    if after is None:
        with pytest.raises(InvalidTransition):
            session.on(event, 103.0)
        assert session.state is state
    else:
        session.on(event, 103.0)
        assert session.state is after


def test_the_walk_of_a_session() -> None:
    session = LinkSession("tcp://127.0.0.1:1", 100.0)
    assert session.next_deadline() == 100.0 + CONNECT_S
    assert session.on(Connected(), 101.0) == [SendHello()]
    assert session.next_deadline() == 101.0 + ADMIT_S
    session.count_control_frame()
    assert session.receive(ADMITTED, 102.0) == [Open(ADMITTED)]
    assert session.frontend_instance == "frontend-1"
    assert session.next_deadline() == 102.0 + SILENCE_S
    assert session.receive(Ping("frontend-1", 1, 1), 103.0) == [Answer(1, 1)]
    assert session.next_deadline() == 103.0 + SILENCE_S
    session.count_control_frame()
    assert session.receive(ABORT, 104.0) == [Deliver(ABORT)]
    assert session.receive(Ping("frontend-1", 2, 2), 105.0) == [Answer(2, 2)]
    assert session.on(Broken("disconnected"), 106.0) == [Close("disconnected", was_open=True)]
    assert session.next_deadline() is None


@pytest.mark.parametrize(("told", "came"), [(3, 2), (2, 3)])
def test_a_ping_that_counts_otherwise_ends_the_session(told: int, came: int) -> None:
    session = session_in(SessionState.ADMITTED)
    for _ in range(came):
        session.count_control_frame()
    reason = f"{told} control frames were sent and {came} came"
    assert session.receive(Ping("frontend-1", told, 1), 103.0) == [Close(reason, was_open=True)]
    assert session.state is SessionState.CLOSED


def test_silence_closes_in_every_state_that_waits() -> None:
    for state in (SessionState.CONNECTING, SessionState.GREETED, SessionState.ADMITTED):
        was_open = state is SessionState.ADMITTED
        assert session_in(state).on(DeadlinePassed(), 200.0) == [Close(f"silence while {state.value}", was_open)]


def test_a_refusal_tells_whether_there_was_something_to_lose() -> None:
    refused = Refused("fenced", "epoch 2 is alive")
    before = session_in(SessionState.GREETED).receive(refused, 103.0)
    assert before == [Close("fenced: epoch 2 is alive", was_open=False, was_refused=True)]
    after = session_in(SessionState.ADMITTED).receive(refused, 103.0)
    assert after == [Close("fenced: epoch 2 is alive", was_open=True, was_refused=True)]


@pytest.mark.parametrize("message", [ABORT, Ping("frontend-1", 0), ADMITTED])
def test_a_message_out_of_turn_is_malformed_and_changes_nothing(message: object) -> None:
    session = session_in(SessionState.ADMITTED if message is ADMITTED else SessionState.GREETED)
    state, deadline = session.state, session.next_deadline()
    with pytest.raises(MalformedFrame):
        session.receive(message, 103.0)  # type: ignore[arg-type]
    assert (session.state, session.next_deadline()) == (state, deadline)


def test_a_version_that_was_not_offered_closes() -> None:
    session = session_in(SessionState.GREETED)
    effects = session.receive(Admitted("frontend-1", 7, 0, 99, 2**26), 102.0)
    assert effects == [Close("protocol version 99 was not offered", was_open=False, was_refused=True)]
    assert (session.state, session.next_deadline()) == (SessionState.CLOSED, None)


def test_a_pause_of_the_process_restarts_the_deadline() -> None:
    for state, wait_s in (
        (SessionState.CONNECTING, CONNECT_S),
        (SessionState.GREETED, ADMIT_S),
        (SessionState.ADMITTED, SILENCE_S),
    ):
        session = session_in(state)
        session.restart_deadline(500.0)
        assert session.next_deadline() == 500.0 + wait_s


def test_a_key_that_is_not_let_in_is_a_refusal() -> None:
    session = session_in(SessionState.CONNECTING)
    assert session.on(Denied("not allowed"), 101.0) == [Close("not allowed", was_open=False, was_refused=True)]
    assert session.state is SessionState.REFUSED
