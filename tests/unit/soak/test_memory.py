"""What is a leak, and what only looks like one."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from tests.soak.memory import MemoryVerdict, Trend, judge_memory, warm_up_end_s

TIMES = np.arange(0, 1200, 5.0)


def noise(size: float) -> np.ndarray:
    return np.random.default_rng(3).normal(0, size, len(TIMES))


@pytest.mark.parametrize(
    ("mib", "trend"),
    [
        (1200 + noise(0.5), Trend.FLAT),
        (np.full(len(TIMES), 108.0), Trend.FLAT),
        (1200 - TIMES * 0.01 + noise(0.5), Trend.FLAT),
        # 1 MiB an hour of 1.2 GiB is a fiftieth a day.
        (1200 + TIMES * 1 / 3600, Trend.FLAT),
        (108 + TIMES * 8 / 3600, Trend.GROWING),
        # Steps of less than an arena.
        (108 + np.where(TIMES < 800, 0.0, 0.9), Trend.FLAT),
        (1200 + TIMES * 30 / 3600 + noise(0.5), Trend.GROWING),
        # Ever slower, 4 MiB within the window.
        (1200 + 40 * (1 - np.exp(-TIMES / 200)) + noise(0.1), Trend.SETTLING),
        # Ever slower too, but 30 MiB within the window.
        (1200 + 200 * (1 - np.exp(-TIMES / 200)) + noise(0.1), Trend.GROWING),
    ],
    ids=["noise", "still", "falling", "negligible", "small leak", "arenas", "leak", "settling", "too much to settle"],
)
def test_trends(mib: np.ndarray, trend: Trend) -> None:
    assert judge_memory(TIMES.tolist(), mib.tolist(), 400).trend is trend


def test_growth_before_the_window_is_not_seen() -> None:
    mib = np.where(TIMES < 300, 500 + TIMES, 800.0)
    verdict = judge_memory(TIMES.tolist(), mib.tolist(), 300)
    assert (verdict.trend, verdict.level_mib, verdict.growth_mib) == (Trend.FLAT, 800.0, 0.0)


def test_growth_is_slope_times_window() -> None:
    verdict = judge_memory(TIMES.tolist(), (1000 + TIMES * 36 / 3600).tolist(), 295)
    assert verdict.growth_mib == pytest.approx(9.0)
    assert verdict.slope is not None
    assert verdict.slope.per_hour == pytest.approx(36)


@pytest.mark.parametrize("start_s", [1170, inf])
def test_too_few_samples_tell_nothing(start_s: float) -> None:
    verdict = judge_memory(TIMES.tolist(), [5.0] * len(TIMES), start_s)
    assert verdict == MemoryVerdict(Trend.TOO_SHORT, 5.0, 0.0, None)


def test_a_short_window_is_shown_and_not_judged() -> None:
    verdict = judge_memory(TIMES.tolist(), (1000 + TIMES).tolist(), 960)
    assert (verdict.trend, verdict.level_mib) == (Trend.TOO_SHORT, 2080.0)
    assert verdict.growth_mib == pytest.approx(235)
    assert judge_memory(TIMES.tolist(), (1000 + TIMES).tolist(), 955).trend is Trend.GROWING


@pytest.mark.parametrize(
    ("run_s", "turns", "end_s"),
    [(1200, [2, 3, 4], 300), (240, [2, 3, 4], 120), (240, [0, 1, 1.5], 400), (240, [0, 1, 1.4], inf)],
    ids=["a quarter", "two minutes", "turns of the pool", "never"],
)
def test_the_warm_up_ends_when_all_of_its_conditions_hold(run_s: float, turns: list[float], end_s: float) -> None:
    assert warm_up_end_s([0, 200, 400], turns, run_s) == end_s
