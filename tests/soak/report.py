"""What a soak found, as data for `report.json` and as tables for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from tests.soak.exposition import Scrape
from tests.soak.memory import MemoryVerdict, judge_memory, warm_up_end_s
from tests.soak.promises import Promise
from tests.soak.recording import Recording
from tests.soak.tally import Outcome, Tally

GENERATED = "roundhouse_generation_tokens_total"
PROMPTED = "roundhouse_prompt_tokens_total"
CACHED = "roundhouse_prefix_cache_hits_total"
KEPT = {True: "yes", False: "[red]NO[/]", None: "cannot tell"}
PREEMPTED = "roundhouse_num_preemptions_total"


@dataclass(frozen=True, slots=True)
class Speed:
    """Generated tokens a second over the whole load and its first and last quarter, aborted requests' included."""

    whole: float
    first_quarter: float
    last_quarter: float


@dataclass(frozen=True, slots=True)
class Report:
    """settings: what the run was started with. log_lines: of each request of a failure."""

    settings: Mapping[str, Any]
    load_s: float
    warm_up_s: float
    speed: Speed
    num_preemptions: int
    prefix_hit_rate: float
    tally: Tally
    memory: Mapping[str, MemoryVerdict]
    promises: Sequence[Promise]
    log_lines: Mapping[str, Sequence[str]]
    troubled_lines: Sequence[str]

    @property
    def is_broken(self) -> bool:
        """A promise is broken. One that could not be judged is not."""
        return any(promise.is_kept is False for promise in self.promises)


def judge_all_memory(
    recording: Recording, load_s: float, *, pool_tokens: int
) -> tuple[float, dict[str, MemoryVerdict]]:
    """The warm-up's end, and a verdict for each process by its name. pool_tokens: of all engines' KV caches."""

    def turns(scrape: Scrape) -> float:
        # Blocks come from the head of a free list and go back to its end, so the pool is used in turn.
        computed = scrape.counters[PROMPTED] - scrape.counters[CACHED] + scrape.counters[GENERATED]
        return computed / pool_tokens

    start_s = warm_up_end_s(*recording.series(turns), load_s)
    return start_s, {
        name if pid == samples[0].pid else f"{name} ({pid})": judge_memory(
            [s.at_s for s in samples], [s.rss_mib for s in samples], start_s
        )
        for (name, pid), samples in recording.by_process().items()
    }


def speed_of(recording: Recording, load_s: float) -> Speed:
    times, tokens = recording.series(lambda scrape: scrape.counters[GENERATED])
    points = [(at_s, count) for at_s, count in zip(times, tokens, strict=True) if at_s <= load_s]
    return Speed(*(_rate(points, a * load_s, b * load_s) for a, b in ((0, 1), (0, 0.25), (0.75, 1))))


def _rate(points: Sequence[tuple[float, float]], start_s: float, end_s: float) -> float:
    within = [point for point in points if start_s <= point[0] <= end_s]
    if len(within) < 2:
        return 0.0
    (first_s, first), (last_s, last) = within[0], within[-1]
    return (last - first) / (last_s - first_s)


def as_json(report: Report) -> dict[str, Any]:
    """Plain values only. An unknown warm-up is null."""
    tally = report.tally
    return {
        "settings": dict(report.settings),
        "load_s": round(report.load_s, 1),
        "warm_up_s": None if report.warm_up_s == float("inf") else round(report.warm_up_s, 1),
        "tokens_per_s": {name: round(value, 1) for name, value in asdict(report.speed).items()},
        "num_preemptions": report.num_preemptions,
        "prefix_hit_rate": round(report.prefix_hit_rate, 3),
        "requests": {
            kind: {outcome: count for (name, outcome), count in sorted(tally.outcomes.items()) if name == kind}
            for kind in tally.kinds()
        },
        "http_statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
        "finish_reasons": dict(sorted(tally.finish_reasons.items())),
        "failures": [
            {**asdict(failure), "log": list(report.log_lines.get(failure.request_id, ()))} for failure in tally.failures
        ],
        "memory": {
            name: {
                "trend": verdict.trend.value,
                "level_mib": round(verdict.level_mib, 1),
                "growth_mib": round(verdict.growth_mib, 2),
                "slope_mib_per_hour": None if verdict.slope is None else asdict(verdict.slope),
            }
            for name, verdict in report.memory.items()
        },
        "promises": [asdict(promise) for promise in report.promises],
        "troubled_log_lines": list(report.troubled_lines[:50]),
        "is_broken": report.is_broken,
    }


def as_tables(report: Report) -> Group:
    return Group(_requests_table(report), _facts_table(report), _promises_table(report), *_failures(report))


def _requests_table(report: Report) -> Table:
    tally = report.tally
    table = Table(title="Requests")
    table.add_column("kind")
    outcomes = (Outcome.AS_MEANT, Outcome.CUT, Outcome.WRONG)
    for outcome in outcomes:
        table.add_column(outcome, justify="right")
    for kind in tally.kinds():
        table.add_row(kind, *(str(tally.outcomes[kind, outcome]) for outcome in outcomes))
    table.add_section()
    table.add_row("all", *(str(tally.total(outcome)) for outcome in outcomes))
    return table


def _facts_table(report: Report) -> Table:
    speed, tally = report.speed, report.tally
    table = Table(title="Facts", show_header=False)
    for name, value in (
        ("started with", ", ".join(f"{key} {value}" for key, value in report.settings.items())),
        ("load, s", f"{report.load_s:.0f}"),
        ("warm-up, s", f"{report.warm_up_s:.0f}"),
        ("tokens/s", f"{speed.whole:.1f}; first quarter {speed.first_quarter:.1f}, last {speed.last_quarter:.1f}"),
        ("preemptions", str(report.num_preemptions)),
        ("prompt tokens from the prefix cache", f"{report.prefix_hit_rate:.0%}"),
        ("HTTP statuses", ", ".join(f"{status}: {count}" for status, count in sorted(tally.statuses.items()))),
        ("finish reasons", ", ".join(f"{end}: {count}" for end, count in sorted(tally.finish_reasons.items()))),
    ):
        table.add_row(name, value)
    return table


def _promises_table(report: Report) -> Table:
    table = Table(title="Promises")
    for heading in ("promise", "kept", "measured"):
        table.add_column(heading)
    for promise in report.promises:
        table.add_row(promise.what, KEPT[promise.is_kept], escape(promise.detail))
    return table


def _failures(report: Report) -> list[str]:
    lines = [
        f"[red]{escape(failure.kind)}[/] {failure.request_id} at {failure.at_s} s: {escape(failure.what)}"
        + "".join(f"\n    {escape(line)}" for line in report.log_lines.get(failure.request_id, ()))
        for failure in report.tally.failures
    ]
    return lines + [escape(line) for line in report.troubled_lines[:20]]
