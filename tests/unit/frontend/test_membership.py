import math

import msgspec
import pytest

from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import (
    LOST_S,
    MAX_PINGS_OUT,
    STALLED_S,
    TABLE,
    UNACKNOWLEDGED_S,
    Ended,
    Heard,
    Leaving,
    Member,
    MembershipState,
    Silent,
    check_load,
)
from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.identity import EngineIndex, SessionId
from roundhouse.protocol.machine import InvalidTransition
from roundhouse.protocol.messages import EngineCoreOutputs, Ping, Pong, SchedulerStats
from tests.support.mesh import HELLO

LOAD = SchedulerStats(num_running_reqs=3, num_waiting_reqs=2)


def new_member() -> Member:
    member = Member(SessionId(5), EngineIndex(0), b"route", HELLO, 2**26, heard_at=100.0)
    member.count_control_frame()
    return member


def pong(member: Member, ping: Ping, **changes: int) -> Pong:
    numbers = {"last_control_number": ping.last_control_number, "last_output_number": member.output_number} | changes
    return Pong(5, ping.ping_number, load=LOAD, **numbers)


def gap(reason: str) -> Verdict:
    return Verdict(LossCause.GAP, reason)


def next_ping(member: Member) -> Ping:
    ping = member.next_ping("f")
    assert ping is not None
    return ping


PATHS: dict[MembershipState, list[type]] = {
    MembershipState.ADMITTED: [],
    MembershipState.STALLED: [Silent],
    MembershipState.DRAINING: [Leaving],
    MembershipState.LOST: [Ended],
    MembershipState.LEFT: [Leaving, Ended],
}


@pytest.mark.parametrize("event", [Heard, Silent, Leaving, Ended])
@pytest.mark.parametrize("state", MembershipState)
def test_every_pair_does_what_the_table_says(state: MembershipState, event: type) -> None:
    machine = new_member().machine
    for step in PATHS[state]:
        machine.move(step)
    after = TABLE.get((state, event))
    if after is None:
        with pytest.raises(InvalidTransition):
            machine.move(event)
    else:
        assert machine.move(event) == (state, after)


def test_a_ping_tells_what_was_sent_and_a_pong_brings_the_load() -> None:
    member = new_member()
    member.count_control_frame()
    ping = next_ping(member)
    assert ping == Ping("f", 2, 1)
    assert member.on_pong(pong(member, ping), 101.0) is None
    assert (member.load, member.heard_at, member.judge(101.0)) == (LOAD, 101.0, None)


def test_silence_stalls_then_loses_and_a_pong_in_between_brings_it_back() -> None:
    member = new_member()
    ping = next_ping(member)
    assert member.judge(100.0 + STALLED_S - 0.01) is None
    assert member.state is MembershipState.ADMITTED
    assert member.judge(100.0 + STALLED_S) is None
    assert member.state is MembershipState.STALLED
    assert member.on_pong(pong(member, ping), 110.0) is None
    assert member.state is MembershipState.ADMITTED
    assert member.judge(110.0 + LOST_S - 0.01) is None
    assert member.state is MembershipState.STALLED
    assert member.judge(110.0 + LOST_S) == Verdict(LossCause.STALLED, "silent for 60 s")


def test_outputs_do_not_hide_a_silent_input_thread() -> None:
    member = new_member()
    assert member.on_outputs(EngineCoreOutputs(sequence_number=1)) is None
    member.judge(100.0 + STALLED_S)
    assert member.state is MembershipState.STALLED


def test_a_draining_member_does_not_stall_but_can_be_lost() -> None:
    member = new_member()
    member.on_draining()
    assert member.judge(100.0 + STALLED_S) is None
    assert member.state is MembershipState.DRAINING
    assert member.judge(100.0 + LOST_S) == Verdict(LossCause.STALLED, "silent for 60 s")


@pytest.mark.parametrize("number", [0, 2, 3])
def test_an_output_out_of_order_is_a_gap(number: int) -> None:
    verdict = new_member().on_outputs(EngineCoreOutputs(sequence_number=number))
    assert verdict == gap(f"output {number} came where 1 was due")


def test_a_pong_that_counts_other_outputs_is_a_gap() -> None:
    member = new_member()
    member.on_outputs(EngineCoreOutputs(sequence_number=1))
    ping = next_ping(member)
    verdict = member.on_pong(pong(member, ping, last_output_number=2), 101.0)
    assert verdict == gap("2 outputs were sent and 1 came")


def test_control_frames_that_are_not_acknowledged_for_a_second_are_a_gap() -> None:
    member = new_member()
    member.count_control_frame()
    assert member.on_pong(pong(member, next_ping(member), last_control_number=1), 101.0) is None
    assert member.judge(101.0 + UNACKNOWLEDGED_S - 0.01) is None
    assert member.judge(101.0 + UNACKNOWLEDGED_S) == gap("control frames were lost on the way, 2 were sent")


def test_control_frames_that_are_acknowledged_in_time_are_none() -> None:
    member = new_member()
    member.on_pong(pong(member, next_ping(member), last_control_number=0), 101.0)
    member.on_pong(pong(member, next_ping(member)), 101.5)
    assert member.judge(103.0) is None


def test_frames_sent_after_the_ping_are_not_missed() -> None:
    member = new_member()
    ping = next_ping(member)
    member.count_control_frame()
    assert member.on_pong(pong(member, ping), 101.0) is None
    assert member.judge(103.0) is None


@pytest.mark.parametrize("changes", [{"last_control_number": 2}])
def test_a_pong_that_knows_too_much_is_refused(changes: dict[str, int]) -> None:
    member = new_member()
    verdict = member.on_pong(pong(member, next_ping(member), **changes), 101.0)
    assert verdict == gap("pong 1 answers nothing that was asked")


def test_a_pong_to_what_was_never_asked_is_refused() -> None:
    member = new_member()
    ping = next_ping(member)
    member.on_pong(pong(member, ping), 101.0)
    never = Ping("f", 1, ping.ping_number + 1)
    assert member.on_pong(pong(member, never), 101.0) == gap("pong 2 answers nothing that was asked")


def test_a_pong_answers_once_and_is_stale_then() -> None:
    member = new_member()
    first, second = next_ping(member), next_ping(member)
    assert member.on_pong(pong(member, second), 101.0) is None
    for ping in (first, second):
        assert member.on_pong(pong(member, ping, last_output_number=9), 105.0) is None
    assert (member.heard_at, member.state) == (101.0, MembershipState.ADMITTED)


def test_no_ping_is_sent_into_a_full_window_and_none_is_forgotten() -> None:
    member = new_member()
    pings = [next_ping(member) for _ in range(MAX_PINGS_OUT)]
    assert member.next_ping("f") is None
    assert member.on_pong(pong(member, pings[0]), 101.0) is None
    assert next_ping(member).ping_number == MAX_PINGS_OUT + 1
    assert member.next_ping("f") is None
    assert member.on_pong(pong(member, pings[-1]), 102.0) is None
    assert member.heard_at == 102.0


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1])
@pytest.mark.parametrize("name", SchedulerStats.__struct_fields__)
def test_a_load_has_numbers_that_a_scheduler_can_have(name: str, number: float) -> None:
    check_load(SchedulerStats())
    check_load(LOAD)
    with pytest.raises(MalformedFrame, match="a load that cannot be"):
        check_load(msgspec.structs.replace(LOAD, **{name: number}))


def test_a_pause_of_this_process_blames_nobody() -> None:
    member = new_member()
    member.on_pong(pong(member, next_ping(member), last_control_number=0), 101.0)
    member.restart_deadlines(200.0)
    assert member.judge(200.5) is None
    assert member.state is MembershipState.ADMITTED


def test_requests_are_counted_until_they_end_and_since_the_last_report() -> None:
    member = new_member()
    member.count_request()
    member.count_request()
    member.count_end()
    assert (member.num_inflight, member.num_sent_since_load) == (1, 2)
    member.on_outputs(EngineCoreOutputs(sequence_number=1, scheduler_stats=LOAD))
    assert (member.num_inflight, member.num_sent_since_load, member.load) == (1, 0, LOAD)


def test_it_may_get_requests_from_its_admission_until_it_falls_silent_leaves_or_cannot_be_reached() -> None:
    member = Member(SessionId(5), EngineIndex(0), b"route", HELLO, 2**26, heard_at=100.0)
    assert not member.is_taker
    member.count_control_frame()
    assert member.is_taker
    member.is_unreachable = True
    assert not member.is_taker
    for event in (Silent, Leaving, Ended):
        other = new_member()
        assert other.is_taker
        other.machine.move(event)
        assert not other.is_taker
