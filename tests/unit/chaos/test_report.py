from collections import Counter

import msgspec

from tests.chaos.disturb import Deeds
from tests.chaos.plan import Event, Kind
from tests.chaos.report import Report, as_json, as_tables
from tests.chaos.verdicts import Outcome, Tally, Verdict
from tests.soak.memory import MemoryVerdict, Trend
from tests.soak.slope import Slope

FLAT = MemoryVerdict(Trend.FLAT, 100.0, 0.1, Slope(0.4, -1.0, 2.0))
GROWING = MemoryVerdict(Trend.GROWING, 100.0, 9.0, Slope(36.0, 30.0, 40.0))
SHORT = MemoryVerdict(Trend.TOO_SHORT, 100.0, 0.0, None)
MESH = {"roundhouse_mesh_resume_gap_seconds_count": 4.0, "roundhouse_mesh_resume_gap_seconds_sum": 6.0}


def report(
    *, wrong: Outcome | None = None, left: dict[str, float] | None = None, memory: MemoryVerdict = FLAT, lines: int = 0
) -> Report:
    tally = Tally()
    tally.count(1.0, "a", Verdict(Outcome.EXACT), 10, 0.5)
    tally.count(2.0, "b", Verdict(Outcome.EXACT), 10, 1.5)
    tally.count(2.5, "c", Verdict(Outcome.CUT), 1, 0.0)
    if wrong is not None:
        tally.count(3.0, "d", Verdict(wrong, "[story]"), 5, 0.0)
    deeds = Deeds([(1.0, Event(1.0, Kind.KILL, 1, None, 2.0))], Counter({Kind.CUT: 2}), [0.5, 1.5])
    return Report({"seed": 0}, 60.0, deeds, tally, left or {}, MESH, {"e-0": memory}, ["log: ERROR"] * lines)


def test_a_run_in_which_all_went_well() -> None:
    good = report()
    assert not good.is_broken
    assert [promise.is_kept for promise in good.promises()] == [True] * 6
    assert good.mean_gap_s == 1.5


def test_each_thing_that_breaks_a_promise() -> None:
    broken = [
        report(wrong=Outcome.LOST),
        report(wrong=Outcome.WRONG_TOKENS),
        report(wrong=Outcome.DIVERGED),
        report(left={"kv_cache_usage": 0.1}),
        report(memory=GROWING),
        report(lines=1),
    ]
    assert [[promise.is_kept for promise in each.promises()].index(False) for each in broken] == [0, 1, 2, 3, 4, 5]
    assert all(each.is_broken for each in broken)


def test_what_cannot_be_told_breaks_nothing() -> None:
    short = report(memory=SHORT)
    assert [promise.is_kept for promise in short.promises()][4] is None
    assert not short.is_broken


def test_json_has_everything_in_plain_values() -> None:
    plain = msgspec.json.decode(msgspec.json.encode(as_json(report(wrong=Outcome.LOST))))
    assert plain["is_broken"] is True
    assert plain["events"] == {str(kind): int(kind is Kind.KILL) for kind in Kind}
    assert plain["skipped_events"] == {"connection cut": 2}
    assert plain["streams"] == {
        "exact": 2,
        "another token than the undisturbed run gave": 0,
        "tokens lost or doubled": 0,
        "stream lost": 1,
        "cut by its frontend's restart": 1,
    }
    assert plain["examples"][-1] == {"at_s": 3.0, "stream": "d", "outcome": "stream lost", "detail": "[story]"}
    assert plain["log"] == [{"at_s": 1.0, "event": "kill -9 of e-1, 2.0 s"}]
    assert (plain["num_tokens"], plain["longest_gap_s"], plain["mean_resume_gap_s"]) == (20, 1.5, 1.5)


def test_tables_can_be_made_of_every_report() -> None:
    assert len(as_tables(report(wrong=Outcome.LOST, lines=3)).renderables) == 4 + 1 + 3
    assert len(as_tables(report()).renderables) == 4
