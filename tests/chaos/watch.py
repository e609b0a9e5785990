"""A chaos run from outside: memory of every process, counters of every frontend's lives, and what is left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import httpx

from tests.chaos.load import Door
from tests.soak.exposition import not_zero, parse_metrics
from tests.soak.memory import MemoryVerdict, Trend, judge_memory
from tests.soak.processes import parse_mib
from tests.support.cluster import Cluster

ZERO_WITHIN_S = 60.0
TROUBLE = (" ERROR ", " CRITICAL ", "Traceback (most recent call last)")
DUE = "allowed.json: Input data was truncated"
"""What a frontend says of a list that the run broke."""

MEMORY_WARM_UP_FRACTION, MEMORY_WARM_UP_S = 0.25, 120.0


@dataclass(slots=True)
class Memory:
    """MiB of anonymous memory (heap and stacks; an engine's KV cache is shared memory and full size from the start),
    with the seconds of each sample, by (name, pid)."""

    samples: dict[tuple[str, int], list[tuple[float, float]]] = field(default_factory=dict)

    def sample(self, at_s: float, processes: Iterable[tuple[str, int]]) -> None:
        for name, pid in processes:
            try:
                mib = parse_mib(Path(f"/proc/{pid}/status").read_text()).get("RssAnon")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if mib is not None:
                self.samples.setdefault((name, pid), []).append((at_s, mib))

    def verdicts(self, run_s: float) -> dict[str, MemoryVerdict]:
        """Of each name's longest life, if that was long enough; of what lives from start to end in any case."""
        start_s = max(MEMORY_WARM_UP_FRACTION * run_s, MEMORY_WARM_UP_S)
        verdicts: dict[str, MemoryVerdict] = {}
        for name in sorted({name for name, _ in self.samples}):
            longest = max((s for (other, _), s in self.samples.items() if other == name), key=len)
            verdict = judge_memory(*zip(*longest, strict=True), start_s=longest[0][0] + start_s)
            if verdict.trend is not Trend.TOO_SHORT or name.endswith("-0"):
                verdicts[name] = verdict
        return verdicts


class MeshCounters:
    """The frontends' counters over all their lives: the last value that was seen of each, summed."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], dict[str, float]] = {}

    def sample(self, doors: Sequence[Door]) -> None:
        for door in doors:
            life = door.life
            if not door.is_open:
                continue
            try:
                metrics = door.frontend.metrics()
            except httpx.TransportError:
                continue
            if door.life == life:
                self._last[door.frontend.name, life] = {k: v for k, v in metrics.items() if "_mesh_" in k}

    def total(self) -> dict[str, float]:
        """Without histograms' buckets."""
        counted: Counter[str] = Counter()
        for values in self._last.values():
            counted.update({k: v for k, v in values.items() if "_bucket" not in k and "_created" not in k and v})
        return {name: round(value, 3) for name, value in sorted(counted.items())}


def wait_for_zero(cluster: Cluster) -> dict[str, float]:
    """The gauges and the engines' numbers that are not zero when nothing runs any more; {} when all were in time."""
    deadline = monotonic() + ZERO_WITHIN_S
    while left := _not_zero(cluster):
        if monotonic() > deadline:
            return left
        sleep(0.2)
    return {}


def _not_zero(cluster: Cluster) -> dict[str, float]:
    left: dict[str, float] = {}
    for frontend in cluster.frontends:
        gauges = not_zero(parse_metrics(httpx.get(f"{frontend.admin_url}/metrics").text))
        left |= {f"{frontend.name} {name}": value for name, value in gauges.items()}
        for identity, engine in frontend.engines().items():
            for name in ("num_running", "num_waiting", "kv_cache_usage", "num_inflight"):
                if engine[name]:
                    left[f"{frontend.name} {identity} {name}"] = float(str(engine[name]))
    return left


def troubled_lines(cluster: Cluster) -> list[str]:
    return [
        f"{log.name}: {line}"
        for log in [*(frontend.log for frontend in cluster.frontends), *(engine.log for engine in cluster.engines)]
        for line in log.read_text(errors="replace").splitlines()
        if any(word in line for word in TROUBLE) and DUE not in line
    ]
