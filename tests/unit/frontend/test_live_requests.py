from itertools import count

from roundhouse.frontend.engine_set import EngineSet
from roundhouse.frontend.live_requests import LiveRequests
from roundhouse.frontend.membership import Member
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs, OutputError
from roundhouse.protocol.sampling import FinishReason
from tests.support.mesh import admit, hello, request


def two_members() -> tuple[LiveRequests, Member, Member]:
    engines = EngineSet("frontend-1", count(1))
    return LiveRequests(), admit(engines, hello("a")), admit(engines, hello("b"))


def outputs(*items: EngineCoreOutput) -> EngineCoreOutputs:
    return EngineCoreOutputs(sequence_number=1, outputs=list(items))


def test_outputs_pass_until_the_last_one() -> None:
    live, a, _ = two_members()
    live.add(request("r", max_tokens=3), a)
    assert a.num_inflight == 1
    first = outputs(EngineCoreOutput("r", 0, 0, [5, 6]))
    assert live.accept(a, first) == (first, 0)
    last = outputs(EngineCoreOutput("r", 0, 2, [7], FinishReason.LENGTH))
    assert live.accept(a, last) == (last, 0)
    assert ("r" in live, a.num_inflight) == (False, 0)
    assert live.accept(a, last) == (outputs(), 1)


def test_what_is_late_doubled_or_not_from_the_holder_is_dropped_and_counted() -> None:
    live, a, b = two_members()
    live.add(request("r", attempt=2, output_token_ids=[1, 2]), a)
    good = EngineCoreOutput("r", 2, 2, [5])
    bad = [
        EngineCoreOutput("r", 1, 2, [5]),
        EngineCoreOutput("r", 2, 1, [5]),
        EngineCoreOutput("unknown", 0, 0, [5]),
    ]
    assert live.accept(a, outputs(*bad, good)) == (outputs(good), 3)
    assert live.accept(b, outputs(EngineCoreOutput("r", 2, 3, [6]))) == (outputs(), 1)
    assert live.accept(a, outputs(good)) == (outputs(), 1)


def test_an_aborted_request_is_forgotten() -> None:
    live, a, b = two_members()
    for name, member in (("r", a), ("s", b), ("t", a)):
        live.add(request(name), member)
    assert live.remove(["t", "unknown", "s", "r"]) == [(a, ["t", "r"]), (b, ["s"])]
    assert (a.num_inflight, b.num_inflight) == (0, 0)
    assert live.accept(a, outputs(EngineCoreOutput("r", 0, 0, [1]))) == (outputs(), 1)


def test_every_request_of_a_lost_engine_is_answered_once() -> None:
    live, a, b = two_members()
    for name, member in (("r", a), ("s", b), ("t", a)):
        live.add(request(name, max_tokens=9), member)
    live.accept(a, outputs(EngineCoreOutput("t", 0, 0, [5, 6, 7])))
    answer = live.end_all_of(a, "the peer is gone")
    error = OutputError("engine_dead", "engine a is lost: the peer is gone")
    assert answer == EngineCoreOutputs(
        a.session_id,
        a.engine_index,
        (1, 1),
        outputs=[
            EngineCoreOutput("r", 0, 0, [], FinishReason.ERROR, error=error),
            EngineCoreOutput("t", 0, 3, [], FinishReason.ERROR, error=error),
        ],
    )
    assert (a.num_inflight, b.num_inflight) == (0, 1)
    assert live.end_all_of(a, "again") is None
    assert "s" in live
