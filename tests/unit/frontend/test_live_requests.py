from itertools import count

import pytest

from roundhouse.frontend.engine_set import EngineSet
from roundhouse.frontend.live_request import LiveRequest, Resumed
from roundhouse.frontend.live_requests import Accepted, LiveRequests, WaitLimits, choices_for
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import Member
from roundhouse.protocol.errors import MessageTooLarge
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, OutputError
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from tests.support.mesh import admit, hello, request

GONE = Verdict(LossCause.UNREACHABLE, "the peer is gone")


class Table:
    """Live requests and two engines, at a time that each call names."""

    def __init__(self, limits: WaitLimits | None = None) -> None:
        engines = EngineSet("frontend-1", count(1))
        self.live = LiveRequests(limits)
        self.a, self.b = admit(engines, hello("a")), admit(engines, hello("b"))

    def add(self, request_id: str, member: Member | None = None, now: float = 10.0, **fields: object) -> LiveRequest:
        live = self.live.add(request(request_id, **({"max_tokens": 20} | fields)), now)  # type: ignore[arg-type]
        if member is not None:
            self.live.place(live, member)
        return live

    def accept(self, member: Member, *outputs: EngineCoreOutput, now: float = 11.0) -> Accepted:
        return self.live.accept(member, batch(*outputs), now)

    def inflight(self) -> tuple[int, int]:
        return self.a.num_inflight, self.b.num_inflight


def batch(*outputs: EngineCoreOutput) -> EngineCoreOutputs:
    return EngineCoreOutputs(sequence_number=1, outputs=list(outputs))


def error_output(request_id: str, attempt: int, first: int, code: str, message: str) -> EngineCoreOutput:
    return EngineCoreOutput(request_id, attempt, first, [], FinishReason.ERROR, error=OutputError(code, message))


def test_outputs_pass_as_they_are_until_the_last_one() -> None:
    table = Table()
    live = table.add("r", table.a)
    first = batch(EngineCoreOutput("r", 0, 0, [5, 6]))
    accepted = table.live.accept(table.a, first, 11.0)
    assert accepted == Accepted(first)
    assert accepted.outputs is first
    assert (live.output_token_ids, table.inflight()) == ([5, 6], (1, 0))
    last = EngineCoreOutput("r", 0, 2, [7], FinishReason.LENGTH)
    assert table.accept(table.a, last) == Accepted(batch(last))
    assert ("r" in table.live, len(table.live), table.inflight()) == (False, 0, (0, 0))
    assert table.accept(table.a, last) == Accepted(batch(), num_late=1)


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR])
def test_an_end_without_tokens_is_an_end(reason: FinishReason) -> None:
    table = Table()
    table.add("r", table.a)
    end = EngineCoreOutput("r", 0, 0, [], reason)
    assert table.accept(table.a, end) == Accepted(batch(end))
    assert (len(table.live), table.live.num_waiting, table.inflight()) == (0, 0, (0, 0))


def test_what_is_late_doubled_or_not_from_the_holder_is_dropped_and_counted() -> None:
    table = Table()
    table.add("r", table.a, attempt=2, output_token_ids=[1, 2])
    good = EngineCoreOutput("r", 2, 2, [5])
    bad = [
        EngineCoreOutput("r", 1, 2, [5]),
        EngineCoreOutput("r", 3, 2, [5]),
        EngineCoreOutput("r", 2, 1, [5]),
        EngineCoreOutput("unknown", 0, 0, [5]),
    ]
    assert table.accept(table.a, *bad, good, good) == Accepted(batch(good), num_late=5)
    assert table.accept(table.b, EngineCoreOutput("r", 2, 3, [6])) == Accepted(batch(), num_late=1)


def test_what_an_earlier_attempt_still_says_is_dropped_whoever_has_it_now() -> None:
    table = Table()
    live = table.add("r", table.a)
    table.accept(table.a, EngineCoreOutput("r", 0, 0, [5]))
    table.live.take_back(live, LossCause.DRAINED, 12.0)
    late = EngineCoreOutput("r", 0, 1, [6], FinishReason.LENGTH)
    assert table.accept(table.a, late) == Accepted(batch(), num_late=1)
    table.live.place(live, table.a)
    assert table.accept(table.a, late) == Accepted(batch(), num_late=1)
    good = EngineCoreOutput("r", 1, 1, [6])
    accepted = table.accept(table.a, good, now=14.0)
    assert accepted == Accepted(batch(good), resumed=[Resumed(LossCause.DRAINED, 3.0, 4)])


def test_an_abort_by_the_engine_gives_the_request_back() -> None:
    table = Table()
    live, other = table.add("r", table.a), table.add("s", table.a)
    going_on = EngineCoreOutput("s", 0, 0, [8])
    accepted = table.accept(table.a, EngineCoreOutput("r", 0, 0, [], FinishReason.ABORT), going_on, now=12.0)
    assert accepted == Accepted(batch(going_on), returned=[live])
    assert (table.live.waiting(), live.waits_since, live.suspicion.losses) == ([live], 12.0, [])
    assert (table.inflight(), table.live.placed_with(table.a)) == ((1, 0), [other])


def test_the_tokens_that_came_with_an_abort_are_kept_and_passed_on_without_the_end() -> None:
    table = Table()
    live = table.add("r", table.a)
    accepted = table.accept(table.a, EngineCoreOutput("r", 0, 0, [5, 6], FinishReason.ABORT))
    assert accepted == Accepted(batch(EngineCoreOutput("r", 0, 0, [5, 6])), returned=[live])
    assert table.live.place(live, table.b).output_token_ids == [5, 6]
    assert table.inflight() == (0, 1)


def test_removed_requests_are_forgotten_wherever_they_are() -> None:
    table = Table()
    for name, member in (("r", table.a), ("s", table.b), ("t", table.a), ("waiting", None)):
        table.add(name, member)
    held = table.live.remove(["t", "unknown", "waiting", "s", "r", "t"])
    assert held == [(table.a, ["t", "r"]), (table.b, ["s"])]
    assert (len(table.live), table.live.num_waiting, table.inflight()) == (0, 0, (0, 0))
    assert table.accept(table.a, EngineCoreOutput("r", 0, 0, [1])) == Accepted(batch(), num_late=1)
    assert table.live.remove(["r", "waiting"]) == []


def test_every_request_of_a_lost_engine_waits_in_order_and_no_other_one() -> None:
    table = Table()
    r, s, t = table.add("r", table.a), table.add("s", table.b), table.add("t", table.a, now=11.0)
    table.accept(table.a, EngineCoreOutput("t", 0, 0, [5]))
    assert table.live.placed_with(table.a) == [t, r]
    assert table.live.lose(table.a, GONE, 12.0) == []
    assert (table.live.waiting(), table.live.placed_with(table.b), table.inflight()) == ([t, r], [s], (0, 1))
    assert (t.waits_since, r.waits_since) == (12.0, 12.0)
    assert table.live.lose(table.a, GONE, 13.0) == []


def test_a_request_that_keeps_losing_its_engines_is_given_up_alone() -> None:
    table = Table()
    bad, good = table.add("bad", table.a), table.add("good", table.a)
    died = Verdict(LossCause.DIED, "out of memory")
    for attempt in range(2):
        assert table.live.lose(table.a, died, 12.0) == []
        for live in (bad, good):
            table.live.place(live, table.a)
        table.accept(table.a, EngineCoreOutput("good", attempt + 1, attempt, [5]))
    message = "3 engines were lost while they had this request and gave no token; the last one, a: out of memory"
    assert table.live.lose(table.a, died, 13.0) == [error_output("bad", 2, 0, "request_poisoned", message)]
    assert (table.live.waiting(), len(table.live), table.inflight()) == ([good], 1, (0, 0))


def test_an_engine_that_comes_back_in_the_same_life_acquits_those_that_it_had() -> None:
    table = Table()
    live, other = table.add("r", table.a), table.add("s", table.b)
    for _ in range(5):
        table.live.lose(table.a, GONE, 12.0)
        table.live.place(live, table.a)
    table.live.lose(table.b, GONE, 12.0)
    table.live.on_seen(table.a.hello)
    assert (live.suspicion.losses, len(other.suspicion.losses)) == ([], 1)
    assert table.live.lose(table.a, GONE, 13.0) == []


def test_waiting_requests_come_begun_ones_first_then_by_arrival_then_as_they_were_accepted() -> None:
    table = Table()
    new = [
        table.live.add(EngineCoreRequest(name, [1], SamplingParams(max_tokens=20), arrival), 10.0)
        for name, arrival in (("x", 3.0), ("y", 1.0), ("z", 1.0))
    ]
    begun = table.live.add(EngineCoreRequest("begun", [1], SamplingParams(max_tokens=20), 9.0), 10.0)
    table.live.place(begun, table.a)
    table.accept(table.a, EngineCoreOutput("begun", 0, 0, [5]))
    table.live.lose(table.a, GONE, 12.0)
    assert table.live.waiting() == [begun, new[1], new[2], new[0]]
    assert (table.live.num_waiting, len(table.live)) == (4, 4)


def test_new_and_lost_requests_wait_each_up_to_their_own_limit() -> None:
    table = Table(WaitLimits(wait_s=5.0, resume_s=60.0))
    table.add("new", now=10.0)
    table.add("moved", table.a, now=10.0)
    table.add("begun", table.a, now=10.0)
    table.add("placed", table.b, now=0.0)
    table.accept(table.a, EngineCoreOutput("begun", 0, 0, [5, 6]))
    table.live.lose(table.a, GONE, 12.0)
    assert table.live.expire(14.99) == []
    none_takes = "no engine takes requests now"
    assert table.live.expire(15.0) == [error_output("new", 0, 0, "no_engine", none_takes)]
    assert table.live.expire(71.99) == []
    none_came = "the engine of this request is lost, and none that could go on with it came"
    assert table.live.expire(72.0) == [
        error_output("begun", 0, 2, "engine_dead", none_came),
        error_output("moved", 0, 0, "engine_dead", none_came),
    ]
    assert (len(table.live), table.live.num_waiting, table.inflight()) == (1, 0, (0, 1))


def test_each_wait_counts_from_its_own_loss() -> None:
    table = Table(WaitLimits(wait_s=5.0, resume_s=60.0))
    live = table.add("r", table.a)
    table.live.lose(table.a, GONE, 12.0)
    table.live.place(live, table.b)
    assert table.live.expire(1000.0) == []
    table.live.lose(table.b, GONE, 1000.0)
    assert table.live.expire(1059.99) == []
    assert [output.request_id for output in table.live.expire(1060.0)] == ["r"]


def test_so_many_new_requests_may_wait_and_those_that_began_are_not_counted() -> None:
    table = Table(WaitLimits(max_waiting=2))
    table.add("begun", table.a)
    table.accept(table.a, EngineCoreOutput("begun", 0, 0, [5]))
    table.live.lose(table.a, GONE, 12.0)
    assert [table.live.may_wait(table.add(name)) for name in "rst"] == [True, True, False]
    table.live.remove(["r"])
    assert table.live.num_waiting == 3
    assert table.live.may_wait(table.live.waiting()[-1])


def test_nobody_waits_when_the_limit_is_zero() -> None:
    table = Table(WaitLimits(wait_s=0.0))
    assert not table.live.may_wait(table.add("r"))


def test_the_end_of_what_is_given_up_stands_behind_its_last_token() -> None:
    table = Table()
    never = table.add("never", attempt=3)
    assert table.live.give_up(never, MessageTooLarge("too large", param="prompt")) == EngineCoreOutput(
        "never", 3, 0, [], FinishReason.ERROR, error=OutputError("message_too_large", "too large", "prompt")
    )
    begun = table.add("begun", table.a)
    table.accept(table.a, EngineCoreOutput("begun", 0, 0, [5, 6]))
    table.live.lose(table.a, GONE, 12.0)
    table.live.place(begun, table.b)
    end = table.live.give_up(begun, MessageTooLarge("too large"))
    assert end == error_output("begun", 1, 2, "message_too_large", "too large")
    assert (len(table.live), table.live.num_waiting, table.inflight()) == (0, 0, (0, 0))


def test_engines_to_choose_from_are_those_that_fit() -> None:
    engines = EngineSet("frontend-1", count(1))
    a, b, other = (admit(engines, hello(name, resume_key=key)) for name, key in zip("abc", "kkx", strict=True))
    live = LiveRequest(request(max_tokens=20), 10.0)
    assert choices_for(live, [a, b, other]) == [a, b, other]
    live.place(a)
    live.take(EngineCoreOutput("r", 0, 0, [5]), 11.0)
    assert choices_for(live, [a, b, other]) == [a, b]
    assert choices_for(live, [a, b, other], but=a) == [b]
