"""What is asked of a server, and the figures that come of what the load client saw. Values only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.bench.load_client import LoadReport, check_report
from tests.bench.prompts import make_prompts
from tests.bench.results import Figure, percentile
from tests.bench.server import BenchServer


@dataclass(frozen=True)
class Stage:
    """`num_streams` clients that each make `requests_each` requests of `prompt_tokens` in and `max_tokens` out.

    name: ends the names of its rows, and seeds its prompts. fields: of the request bodies. for_ours_alone: no peer is
    asked.
    """

    name: str
    num_streams: int
    requests_each: int
    prompt_tokens: int = 128
    max_tokens: int = 64
    fields: dict[str, Any] = field(default_factory=dict)
    for_ours_alone: bool = False

    @property
    def num_requests(self) -> int:
        return self.num_streams * self.requests_each

    @property
    def figures(self) -> tuple[Figure, ...]:
        return (
            Figure(f"output, {self.name}", "tokens/s", "higher"),
            Figure(f"first token, {self.name}", "ms", "lower"),
            Figure(f"between tokens p50, {self.name}", "ms", "lower"),
            Figure(f"between tokens p99, {self.name}", "ms", "lower"),
        )

    def bodies(self, server: BenchServer, words: list[int]) -> list[dict[str, Any]]:
        prompts = make_prompts(words, self.num_requests, self.prompt_tokens, seed=self.name)
        return [server.body(prompt, self.max_tokens, **self.fields) for prompt in prompts]

    def values(self, report: LoadReport) -> dict[str, float]:
        """By the names of `figures`. Raises `BenchError` when a request was not answered in full."""
        output_tokens = self._check(report)
        names = [figure.name for figure in self.figures]
        values = [
            output_tokens / report.wall_s,
            statistics.median(report.ttfts_us) / 1e3,
            percentile(report.gaps_us, 0.5) / 1e3,
            percentile(report.gaps_us, 0.99) / 1e3,
        ]
        return dict(zip(names, values, strict=True))

    def _check(self, report: LoadReport) -> int:
        return check_report(
            report, num_requests=self.num_requests, prompt_tokens=self.prompt_tokens, max_tokens=self.max_tokens
        )


@dataclass(frozen=True)
class PrefillStage(Stage):
    """One stream whose requests end with their first token."""

    max_tokens: int = 1

    @property
    def figures(self) -> tuple[Figure, ...]:
        return (Figure(f"prefill {self.prompt_tokens}", "tokens/s", "higher"),)

    def values(self, report: LoadReport) -> dict[str, float]:
        """The median over the requests, each from its start to its first token."""
        self._check(report)
        return {self.figures[0].name: self.prompt_tokens / (statistics.median(report.ttfts_us) / 1e6)}


@dataclass(frozen=True)
class CeilingStage(Stage):
    """A model that costs nothing: tokens/s alone, and what the client itself took of the machine meanwhile."""

    @property
    def figures(self) -> tuple[Figure, ...]:
        return (
            Figure(f"frontend ceiling, {self.name}", "tokens/s", "higher"),
            Figure(f"load client's own CPU, {self.name}", "µs/token", "lower"),
        )

    def values(self, report: LoadReport) -> dict[str, float]:
        output_tokens = self._check(report)
        names = [figure.name for figure in self.figures]
        return {names[0]: output_tokens / report.wall_s, names[1]: report.cpu_s / output_tokens * 1e6}


WARM_UP = Stage("warm-up", num_streams=8, requests_each=1, max_tokens=16)

MODEL_STAGES: tuple[Stage, ...] = (
    Stage("1 stream", num_streams=1, requests_each=3),
    Stage("8 streams", num_streams=8, requests_each=2),
    Stage("32 streams", num_streams=32, requests_each=2),
    Stage("32 streams, temperature 1", 32, 2, fields={"temperature": 1.0}, for_ours_alone=True),
    PrefillStage("prefill 512", num_streams=1, requests_each=5, prompt_tokens=512),
    PrefillStage("prefill 1024", num_streams=1, requests_each=5, prompt_tokens=1024),
)

CEILING_STAGES: tuple[Stage, ...] = (
    CeilingStage("1 stream", num_streams=1, requests_each=8, max_tokens=128),
    CeilingStage("16 streams", num_streams=16, requests_each=4, max_tokens=128),
    CeilingStage("64 streams", num_streams=64, requests_each=3, max_tokens=128),
)

READY = Figure("time to ready", "s", "lower")

PEAK_RSS: dict[str, Figure] = {
    role: Figure(f"peak memory, {role}", "MiB", "lower") for role in ("frontend", "engine", "other", "all processes")
}
"""By role of `RunningServer.peak_rss_mib`."""

TOTAL_PEAK_RSS = PEAK_RSS["all processes"]


def figures_of(stages: Sequence[Stage]) -> list[Figure]:
    return [figure for stage in stages for figure in stage.figures]
