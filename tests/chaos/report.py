"""What a chaos run found: promises, `report.json` and tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from tests.chaos.disturb import Deeds
from tests.chaos.verdicts import WRONG, Outcome, Tally
from tests.soak.memory import MemoryVerdict, Trend
from tests.soak.promises import Promise

KEPT = {True: "yes", False: "[red]NO[/]", None: "cannot tell"}
GAP = "roundhouse_mesh_resume_gap_seconds"


@dataclass(frozen=True, slots=True)
class Report:
    """left: gauges that were not zero at the end. mesh: the frontends' counters."""

    settings: Mapping[str, Any]
    load_s: float
    deeds: Deeds
    tally: Tally
    left: Mapping[str, float]
    mesh: Mapping[str, float]
    memory: Mapping[str, MemoryVerdict]
    troubled_lines: Sequence[str]

    def promises(self) -> list[Promise]:
        outcomes = self.tally.outcomes
        lost, wrong, diverged = (outcomes[o] for o in (Outcome.LOST, Outcome.WRONG_TOKENS, Outcome.DIVERGED))
        left = ", ".join(f"{name} is {value:g}" for name, value in self.left.items())
        return [
            Promise("no stream of a frontend that lived on was lost", lost == 0, f"{lost} of {outcomes.total()}"),
            Promise("no token was lost or doubled", wrong == 0, f"{wrong} streams; {self.tally.num_tokens} tokens"),
            Promise("every token is that of the undisturbed run", diverged == 0, f"{diverged} streams"),
            Promise("no block, row or request is left, all gauges are zero", not self.left, left),
            *(_memory(name, verdict) for name, verdict in self.memory.items()),
            Promise("the logs have no error", not self.troubled_lines, f"{len(self.troubled_lines)} lines"),
        ]

    @property
    def is_broken(self) -> bool:
        """A promise is broken. One that could not be judged is not."""
        return any(promise.is_kept is False for promise in self.promises())

    @property
    def mean_gap_s(self) -> float | None:
        """Of the frontends' resumptions: from the last token before a loss to the next one."""
        count = self.mesh.get(f"{GAP}_count", 0.0)
        return self.mesh.get(f"{GAP}_sum", 0.0) / count if count else None


def _memory(name: str, verdict: MemoryVerdict) -> Promise:
    what = f"memory of {name} is flat"
    if verdict.slope is None or verdict.trend is Trend.TOO_SHORT:
        return Promise(what, None, f"too short; {verdict.level_mib:.0f} MiB")
    slope = verdict.slope
    detail = (
        f"{verdict.trend.value}: {slope.per_hour:+.2f} MiB/h ({slope.low:+.2f} to {slope.high:+.2f}),"
        f" {verdict.growth_mib:+.2f} of {verdict.level_mib:.0f} MiB"
    )
    return Promise(what, verdict.trend is not Trend.GROWING, detail)


def as_json(report: Report) -> dict[str, Any]:
    """Plain values only."""
    return {
        "settings": dict(report.settings),
        "load_s": round(report.load_s, 1),
        "is_broken": report.is_broken,
        "promises": [asdict(promise) for promise in report.promises()],
        "events": report.deeds.by_kind(),
        "skipped_events": {str(kind): count for kind, count in sorted(report.deeds.skipped.items())},
        "leaving_s": [round(seconds, 2) for seconds in report.deeds.leaving_s],
        "streams": {str(outcome): report.tally.outcomes[outcome] for outcome in Outcome},
        "num_tokens": report.tally.num_tokens,
        "longest_gap_s": round(report.tally.longest_gap_s, 2),
        "mean_resume_gap_s": None if report.mean_gap_s is None else round(report.mean_gap_s, 3),
        "mesh": dict(report.mesh),
        "left": dict(report.left),
        "examples": [
            {"at_s": e.at_s, "stream": e.name, "outcome": str(e.verdict.outcome), "detail": e.verdict.detail}
            for e in report.tally.examples
            if e.verdict.outcome is not Outcome.CUT
        ],
        "log": [{"at_s": at_s, "event": str(event)} for at_s, event in report.deeds.done],
        "troubled_lines": list(report.troubled_lines),
    }


def as_tables(report: Report) -> Group:
    return Group(
        _table("Events", "times", report.deeds.by_kind().items()),
        _table("Streams", "number", [(str(outcome), report.tally.outcomes[outcome]) for outcome in Outcome]),
        _table("Failover", "", _costs(report)),
        _promises(report.promises()),
        *(
            f"[red]{escape(str(e.verdict.outcome))}[/] {escape(e.name)} at {e.at_s} s: {escape(e.verdict.detail)}"
            for e in report.tally.examples
            if e.verdict.outcome in WRONG
        ),
        *(escape(line) for line in report.troubled_lines[:20]),
    )


def _costs(report: Report) -> list[tuple[str, Any]]:
    gap = "none" if report.mean_gap_s is None else f"{report.mean_gap_s:.2f} s"
    leaving = report.deeds.leaving_s
    left = f"{median(leaving):.2f} s, at most {max(leaving):.2f} s" if leaving else "none"
    return [
        ("mean gap of a resumption", gap),
        ("longest gap that a client saw", f"{report.tally.longest_gap_s:.2f} s"),
        ("from SIGTERM to the end of an engine, median", left),
        *((name.removeprefix("roundhouse_mesh_"), f"{value:g}") for name, value in report.mesh.items()),
    ]


def _table(title: str, unit: str, rows: Any) -> Table:
    table = Table(title=title)
    table.add_column("")
    table.add_column(unit, justify="right")
    for name, value in rows:
        table.add_row(escape(str(name)), escape(str(value)))
    return table


def _promises(promises: Sequence[Promise]) -> Table:
    table = Table(title="Promises")
    for heading in ("promise", "kept", "measured"):
        table.add_column(heading)
    for promise in promises:
        table.add_row(promise.what, KEPT[promise.is_kept], escape(promise.detail))
    return table
