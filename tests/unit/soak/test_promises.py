"""Each promise, kept and broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.soak.end_state import EndState
from tests.soak.exposition import Scrape
from tests.soak.memory import MemoryVerdict, Trend
from tests.soak.processes import ProcessSample
from tests.soak.promises import MUST_STAY_ZERO, Promise, judge
from tests.soak.slope import Slope
from tests.soak.tally import Failure, Outcome, Tally

FRONTEND = ProcessSample(0, "frontend", 10, 100, 80, 20, 0, 90, 80, num_fds=30, num_threads=4, cpu_s=1)
ENGINE = ProcessSample(0, "local-0", 11, 1200, 500, 500, 200, 1100, 1000, num_fds=20, num_threads=8, cpu_s=9)
IDLE = [FRONTEND, ENGINE]
END = EndState(0.5, {}, IDLE, [replace(FRONTEND, num_threads=10), ENGINE], {"frontend": 0.01, "local-0": 0.004})
FLAT = MemoryVerdict(Trend.FLAT, 1200, 0.1, Slope(0.4, -1, 2))
SCRAPE = Scrape({}, dict.fromkeys(MUST_STAY_ZERO, 0.0))
PIDS = [("frontend", 10), ("local-0", 11)]


def broken(
    *,
    tally: Tally | None = None,
    end: EndState = END,
    memory: MemoryVerdict = FLAT,
    last: Scrape | None = SCRAPE,
    pids: list[tuple[str, int]] = PIDS,
    troubled_lines: tuple[str, ...] = (),
) -> list[Promise]:
    promises = judge(tally or Tally(), end, {"local-0": memory}, last, pids, troubled_lines)
    assert len(promises) == 9
    return [promise for promise in promises if not promise.is_kept]


def wrong_answer() -> Tally:
    tally = Tally()
    tally.count("seed", Outcome.AS_MEANT)
    tally.fail(Failure("seed", "soak-1", 3.0, "status 500"))
    return tally


def test_all_kept() -> None:
    assert broken() == []


@pytest.mark.parametrize(
    ("run", "promise"),
    [
        (
            lambda: broken(tally=wrong_answer()),
            Promise("every client is treated as it should be", False, "1 of 2 wrongly"),
        ),
        (
            lambda: broken(end=replace(END, zero_after_s=None, left={"kv": 0.25})),
            Promise("all gauges are zero within 2 s", False, "kv is 0.25"),
        ),
        (
            lambda: broken(end=replace(END, zero_after_s=3.0)),
            Promise("all gauges are zero within 2 s", False, "after 3.00 s"),
        ),
        (
            lambda: broken(memory=MemoryVerdict(Trend.GROWING, 1200, 30, Slope(90, 80, 100))),
            Promise(
                "memory of local-0 is flat",
                False,
                "growing: +90.00 MiB/h (+80.00 to +100.00), +30.00 of 1200 MiB",
            ),
        ),
        (
            lambda: broken(memory=MemoryVerdict(Trend.TOO_SHORT, 1200, 0, None)),
            Promise("memory of local-0 is flat", None, "too few samples behind the warm-up"),
        ),
        (
            lambda: broken(memory=MemoryVerdict(Trend.TOO_SHORT, 1200, 3, Slope(90, 80, 100))),
            Promise(
                "memory of local-0 is flat", None, "too short: +90.00 MiB/h (+80.00 to +100.00), +3.00 of 1200 MiB"
            ),
        ),
        (
            lambda: broken(end=replace(END, final=[replace(FRONTEND, num_fds=31), ENGINE])),
            Promise("open files are back at the idle level", False, "frontend 30 → 31, local-0 20 → 20"),
        ),
        (
            lambda: broken(end=replace(END, final=[FRONTEND, replace(ENGINE, num_threads=9)])),
            Promise(
                "threads are back at the idle level, but for the frontend's pools",
                False,
                "frontend 4 → 4, local-0 8 → 9",
            ),
        ),
        (
            lambda: broken(end=replace(END, final=[replace(FRONTEND, num_threads=21), ENGINE])),
            Promise(
                "threads are back at the idle level, but for the frontend's pools",
                False,
                "frontend 4 → 21, local-0 8 → 8",
            ),
        ),
        (
            lambda: broken(end=replace(END, resting_cores={"frontend": 0.01, "local-0": 0.97})),
            Promise(
                "every process rests when nothing runs",
                False,
                "frontend 1.0% of a core, local-0 97.0% of a core",
            ),
        ),
        (
            lambda: broken(pids=[*PIDS, ("local-0", 9)]),
            Promise("the same processes from start to end", False, "3 seen, 2 at the end"),
        ),
        (
            lambda: broken(last=Scrape({}, {**SCRAPE.counters, MUST_STAY_ZERO[2]: 1.0})),
            Promise("no engine was lost, no frame malformed", False, "roundhouse_mesh_lost_engines_total is 1"),
        ),
        (lambda: broken(troubled_lines=("x ERROR y",)), Promise("the log has no error", False, "1 lines")),
    ],
)
def test_one_broken(run: Callable[[], list[Promise]], promise: Promise) -> None:
    assert run() == [promise]


def test_a_server_that_is_gone_keeps_next_to_nothing() -> None:
    end = EndState(None, {}, IDLE, [], {})
    assert [promise.what for promise in broken(end=end, last=None)] == [
        "all gauges are zero within 2 s",
        "open files are back at the idle level",
        "threads are back at the idle level, but for the frontend's pools",
        "every process rests when nothing runs",
        "the same processes from start to end",
        "no engine was lost, no frame malformed",
    ]
