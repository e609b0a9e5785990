"""By which key a session is opened, and when one follows another."""

from itertools import count

import pytest

from roundhouse.protocol.identity import ClientIndex
from roundhouse.transport.address import IpcAddress, TcpAddress
from roundhouse.transport.handover import FIRST_S, Handover
from roundhouse.transport.keys import Credential, EngineKeys, KeyPair

A, B = TcpAddress("10.0.0.1", 5570), TcpAddress("10.0.0.2", 5570)
CLIENT, NEXT_CLIENT = KeyPair("c1", "s1"), KeyPair("c2", "s2")
OLD, BOTH, NEW = ({1: "one"}, {1: "one", 2: "two"}, {2: "two"})


class Engine:
    """Opens, admits and closes sessions by hand."""

    def __init__(self, servers: dict[int, str]) -> None:
        self.handover = Handover(EngineKeys(CLIENT, servers), lambda: 1.0)
        self.numbers = map(ClientIndex, count(1))

    def dial(self, address: TcpAddress = A, *, admitted: bool = True) -> ClientIndex:
        number = next(self.numbers)
        self.handover.opened(number, address, self.handover.first(address), is_handover=False)
        if admitted:
            self.handover.admitted(number)
        return number

    def hand_over(self, now: float, *, admitted: bool = True) -> ClientIndex:
        ((address, credential),) = self.handover.due(now)
        number = next(self.numbers)
        self.handover.opened(number, address, credential, is_handover=True)
        if admitted:
            self.handover.admitted(number)
        return number


def test_without_keys_and_by_ipc_nothing_is_proved() -> None:
    assert Handover(None, lambda: 1.0).first(A) is None
    assert Engine(OLD).handover.first(IpcAddress("/run/mesh")) is None


def test_generations_take_turns_until_one_is_admitted() -> None:
    engine = Engine(BOTH)
    tried = [engine.handover.first(A) for _ in range(3)]
    assert [credential.generation for credential in tried if credential] == [2, 1, 2]
    engine.dial()
    first = engine.handover.first(A)
    assert first is not None
    assert first.generation == 2


def test_a_new_server_key_asks_for_a_second_session_and_supersedes_the_first() -> None:
    engine = Engine(OLD)
    old = engine.dial()
    assert (engine.handover.due(5.0), engine.handover.next_due()) == ([], None)
    engine.handover.set_keys(EngineKeys(CLIENT, BOTH))
    assert engine.handover.next_due() == 0.0
    engine.hand_over(5.0)
    assert engine.handover.due(99.0) == []
    # The old one goes when it is empty: nothing is dialled for that.
    assert engine.handover.closed(old, 9.0) is False


def test_a_new_client_key_does_the_same() -> None:
    engine = Engine(OLD)
    engine.dial()
    engine.handover.set_keys(EngineKeys(NEXT_CLIENT, OLD))
    ((_, credential),) = engine.handover.due(0.0)
    assert (credential.generation, credential.client) == (1, NEXT_CLIENT)


def test_one_attempt_at_a_time_with_a_wait_after_each_that_fails() -> None:
    engine = Engine(OLD)
    engine.dial()
    engine.handover.set_keys(EngineKeys(CLIENT, BOTH))
    now, waits = 0.0, []
    for _ in range(5):
        attempt = engine.hand_over(now, admitted=False)
        assert engine.handover.due(now + 100) == []
        assert engine.handover.closed(attempt, now) is False
        due = engine.handover.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits == [FIRST_S, 2.0, 4.0, 8.0, 10.0]


def test_the_old_session_ends_in_the_middle_of_an_attempt() -> None:
    engine = Engine(OLD)
    old = engine.dial()
    engine.handover.set_keys(EngineKeys(CLIENT, BOTH))
    attempt = engine.hand_over(0.0, admitted=False)
    # The attempt may yet do; when it fails, the address has nothing.
    assert engine.handover.closed(old, 1.0) is False
    assert engine.handover.closed(attempt, 2.0) is True


def test_the_new_session_ends_while_the_old_one_finishes() -> None:
    engine = Engine(OLD)
    old = engine.dial()
    engine.handover.set_keys(EngineKeys(CLIENT, BOTH))
    new = engine.hand_over(0.0)
    assert engine.handover.closed(new, 1.0) is True
    engine.dial()
    assert engine.handover.closed(old, 2.0) is False


def test_a_session_that_ends_is_dialled_again_and_others_are_left_alone() -> None:
    engine = Engine(BOTH)
    one = engine.dial(A)
    engine.dial(B)
    assert engine.handover.closed(one, 1.0) is True
    assert engine.handover.closed(engine.dial(A, admitted=False), 1.0) is True


def test_a_rollback_to_another_key_is_dialled_by_that_one() -> None:
    engine = Engine(BOTH)
    newer = engine.dial()
    assert engine.handover.set_keys(EngineKeys(CLIENT, OLD)) == [newer]
    assert engine.handover.closed(newer, 0.0) is True
    assert engine.handover.first(A) == Credential(1, "one", CLIENT)


@pytest.mark.parametrize(
    ("keys", "are_closed"),
    [
        (EngineKeys(CLIENT, OLD), False),
        (EngineKeys(CLIENT, BOTH), False),
        (EngineKeys(NEXT_CLIENT, BOTH), False),
        (EngineKeys(CLIENT, NEW), True),
        (EngineKeys(CLIENT, {1: "another under the same number"}), True),
        (EngineKeys(CLIENT, {2: "one"}), True),
    ],
)
def test_no_session_outlives_its_server_key_and_each_its_client_key(keys: EngineKeys, are_closed: bool) -> None:
    engine = Engine(OLD)
    sessions = [engine.dial(A), engine.dial(B, admitted=False)]
    ipc = next(engine.numbers)
    engine.handover.opened(ipc, IpcAddress("/run/mesh"), None, is_handover=False)
    assert engine.handover.set_keys(keys) == (sessions if are_closed else [])


def test_all_sessions_with_an_address_lose_their_key_and_it_is_dialled_once() -> None:
    engine = Engine(OLD)
    superseded = engine.dial()
    engine.handover.set_keys(EngineKeys(NEXT_CLIENT, OLD))
    present = engine.hand_over(0.0)
    engine.handover.set_keys(EngineKeys(CLIENT, OLD))
    attempt = engine.hand_over(0.0, admitted=False)
    closing = engine.handover.set_keys(EngineKeys(CLIENT, NEW))
    assert closing == [superseded, present, attempt]
    assert [engine.handover.closed(number, 1.0) for number in closing] == [False, False, True]
    assert engine.handover.first(A) == Credential(2, "two", CLIENT)
