"""What a soak shows to hold, or not: facts in, `Promise`s out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.soak.end_state import ZERO_WITHIN_S, EndState
from tests.soak.exposition import Scrape
from tests.soak.memory import MemoryVerdict, Trend
from tests.soak.processes import ProcessSample
from tests.soak.tally import Outcome, Tally

MAX_RESTING_CORES = 0.1
"""An engine that holds a request, or a row to give back, steps on and on; one that holds none waits at 0.4 % of one."""

MAX_LAZY_THREADS = 16
"""Threads that the frontend's two pools may have got since it was idle: they fill as they are needed and then stay."""

MUST_STAY_ZERO = (
    "roundhouse_mesh_malformed_frames_total",
    "roundhouse_mesh_refused_sessions_total",
    "roundhouse_mesh_lost_engines_total",
    "roundhouse_mesh_lost_requests_total",
)


@dataclass(frozen=True, slots=True)
class Promise:
    """is_kept: None when the run was too short to tell."""

    what: str
    is_kept: bool | None
    detail: str


def judge(
    tally: Tally,
    end: EndState,
    memory: Mapping[str, MemoryVerdict],
    last: Scrape | None,
    pids: Sequence[tuple[str, int]],
    troubled_lines: Sequence[str],
) -> list[Promise]:
    """pids: every (name, pid) that was ever seen."""
    num_wrong = tally.total(Outcome.WRONG)
    return [
        Promise("every client is treated as it should be", num_wrong == 0, f"{num_wrong} of {tally.total()} wrongly"),
        _gauges(end),
        *(_memory(name, verdict) for name, verdict in memory.items()),
        _open_files(end.idle, end.final),
        _threads(end.idle, end.final),
        _rest(end),
        _processes(pids, end.final),
        _mesh(last),
        Promise("the log has no error", not troubled_lines, f"{len(troubled_lines)} lines"),
    ]


def _gauges(end: EndState) -> Promise:
    what = f"all gauges are zero within {ZERO_WITHIN_S:g} s"
    if end.zero_after_s is None:
        return Promise(
            what, False, ", ".join(f"{name} is {value:g}" for name, value in end.left.items()) or "no answer"
        )
    return Promise(what, end.zero_after_s <= ZERO_WITHIN_S, f"after {end.zero_after_s:.2f} s")


def _memory(name: str, verdict: MemoryVerdict) -> Promise:
    what = f"memory of {name} is flat"
    if verdict.slope is None:
        return Promise(what, None, "too few samples behind the warm-up")
    slope = verdict.slope
    detail = (
        f"{verdict.trend.value}: {slope.per_hour:+.2f} MiB/h ({slope.low:+.2f} to {slope.high:+.2f}),"
        f" {verdict.growth_mib:+.2f} of {verdict.level_mib:.0f} MiB"
    )
    is_kept = None if verdict.trend is Trend.TOO_SHORT else verdict.trend is not Trend.GROWING
    return Promise(what, is_kept, detail)


def _open_files(idle: Sequence[ProcessSample], final: Sequence[ProcessSample]) -> Promise:
    before = {sample.name: sample.num_fds for sample in idle}
    is_kept = bool(final) and all(sample.num_fds <= before.get(sample.name, 0) for sample in final)
    detail = ", ".join(f"{s.name} {before.get(s.name, 0)} → {s.num_fds}" for s in final)
    return Promise("open files are back at the idle level", is_kept, detail)


def _threads(idle: Sequence[ProcessSample], final: Sequence[ProcessSample]) -> Promise:
    before = {sample.name: sample.num_threads for sample in idle}
    lazy = {"frontend": MAX_LAZY_THREADS}
    is_kept = bool(final) and all(s.num_threads <= before.get(s.name, 0) + lazy.get(s.name, 0) for s in final)
    detail = ", ".join(f"{s.name} {before.get(s.name, 0)} → {s.num_threads}" for s in final)
    return Promise("threads are back at the idle level, but for the frontend's pools", is_kept, detail)


def _rest(end: EndState) -> Promise:
    is_kept = bool(end.resting_cores) and all(cores < MAX_RESTING_CORES for cores in end.resting_cores.values())
    detail = ", ".join(f"{name} {cores:.1%} of a core" for name, cores in end.resting_cores.items())
    return Promise("every process rests when nothing runs", is_kept, detail)


def _processes(pids: Sequence[tuple[str, int]], final: Sequence[ProcessSample]) -> Promise:
    is_kept = sorted(pids) == sorted((sample.name, sample.pid) for sample in final)
    return Promise("the same processes from start to end", is_kept, f"{len(pids)} seen, {len(final)} at the end")


def _mesh(last: Scrape | None) -> Promise:
    counted = {name: last.counters.get(name, 0.0) for name in MUST_STAY_ZERO} if last is not None else {}
    wrong = [f"{name} is {value:g}" for name, value in counted.items() if value]
    return Promise("no engine was lost, no frame malformed", bool(counted) and not wrong, ", ".join(wrong))
