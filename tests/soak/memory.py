"""What a process's memory does over a run: flat, settling or growing. Pure.

The first part of a run is left out, for memory grows in it by right: buffers find their size, and the KV cache's pages
are taken as its blocks are first used (the load begins with prompts that fill the pool and with a crowd that makes the
steps as large as they become, so that this is soon over). It ends when a quarter of the run, two minutes and one and a
half turns of the block pool are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tests.soak.slope import Slope, theil_sen

WARM_UP_FRACTION = 0.25
MIN_WARM_UP_S = 120.0
MIN_POOL_TURNS = 1.5
"""Of all engines together, who share the work nearly evenly; blocks are used in turn."""

MIN_WINDOW_S = 240.0
"""In less, caches that fill and a heap that finds its size cannot be told from a leak."""

MIN_SAMPLES = 8
NEGLIGIBLE_FRACTION_A_DAY = 0.05
"""Of the process's memory: a leak of that size doubles it in three weeks."""

RESOLUTION_MIB = 1.0
"""Python takes small objects from arenas of this size, and the system counts their pages as they are first touched:
less growth than one arena tells how full the arenas are and nothing else. What a request could leave behind below that
is counted object by object in tests/integration/test_nothing_is_left.py."""

SETTLING_FRACTION = 0.01
"""Of the process's memory, over the window: more is growth even when it slows down."""


class Trend(Enum):
    FLAT = "flat"
    """The slope's interval reaches down to 0, or the slope or the whole growth is negligible."""
    SETTLING = "settling"
    """It grew by under 1 % over the window, and in the second half by less than half as fast as in the first."""
    GROWING = "growing"
    TOO_SHORT = "too short"
    """Under four minutes are left behind the warm-up: the slope is shown, and not judged."""


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """level_mib: the window's median. growth_mib: slope × window. slope: MiB an hour; None of too few samples."""

    trend: Trend
    level_mib: float
    growth_mib: float
    slope: Slope | None


def warm_up_end_s(times_s: Sequence[float], pool_turns: Sequence[float], run_s: float) -> float:
    """When the warm-up is over; infinity when the pool was not turned over often enough."""
    turned = next((at_s for at_s, turns in zip(times_s, pool_turns, strict=True) if turns >= MIN_POOL_TURNS), None)
    return float("inf") if turned is None else max(WARM_UP_FRACTION * run_s, MIN_WARM_UP_S, turned)


def judge_memory(times_s: Sequence[float], mib: Sequence[float], start_s: float) -> MemoryVerdict:
    """Of the samples from `start_s` on."""
    window = [(at_s, value) for at_s, value in zip(times_s, mib, strict=True) if at_s >= start_s]
    level = sorted(mib)[len(mib) // 2] if not window else sorted(v for _, v in window)[len(window) // 2]
    if len(window) < MIN_SAMPLES:
        return MemoryVerdict(Trend.TOO_SHORT, level, 0.0, None)
    slope = theil_sen(*zip(*window, strict=True))
    window_s = window[-1][0] - window[0][0]
    growth = slope.per_hour * window_s / 3600
    trend = Trend.TOO_SHORT if window_s < MIN_WINDOW_S else _trend(window, slope, level, growth)
    return MemoryVerdict(trend, level, growth, slope)


def _trend(window: Sequence[tuple[float, float]], slope: Slope, level: float, growth: float) -> Trend:
    values = [value for _, value in window]
    if (
        slope.low <= 0
        or slope.per_hour * 24 < NEGLIGIBLE_FRACTION_A_DAY * level
        or max(values) - min(values) < RESOLUTION_MIB
    ):
        return Trend.FLAT
    middle = len(window) // 2
    early = theil_sen(*zip(*window[:middle], strict=True))
    late = theil_sen(*zip(*window[middle:], strict=True))
    if growth < SETTLING_FRACTION * level and late.per_hour < early.per_hour / 2:
        return Trend.SETTLING
    return Trend.GROWING
