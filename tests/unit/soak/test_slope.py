"""Series whose slope is known."""

from __future__ import annotations

import numpy as np
import pytest

from tests.soak.slope import Slope, theil_sen


def every_5_s(count: int) -> np.ndarray:
    return np.arange(count) * 5.0


def test_a_straight_line_has_its_own_slope_and_no_interval() -> None:
    times = every_5_s(30)
    slope = theil_sen(times.tolist(), (100 + times * 36 / 3600).tolist())
    assert (slope.per_hour, slope.low, slope.high) == pytest.approx((36, 36, 36))


def test_a_level_series_has_no_slope() -> None:
    assert theil_sen(every_5_s(200).tolist(), [7.0] * 200) == Slope(0.0, 0.0, 0.0)


@pytest.mark.parametrize("true_slope", [0.0, 12.0, -12.0])
@pytest.mark.parametrize("count", [40, 240, 2000])
def test_the_interval_holds_the_slope_of_a_noisy_line(true_slope: float, count: int) -> None:
    times = every_5_s(count)
    noise = np.random.default_rng(1).normal(0, 0.5, (40, count))
    slopes = [theil_sen(times.tolist(), (1000 + times * true_slope / 3600 + row).tolist()) for row in noise]
    held = sum(slope.low <= true_slope <= slope.high for slope in slopes)
    assert held >= 34
    assert np.median([slope.per_hour for slope in slopes]) == pytest.approx(true_slope, abs=6)
    assert all(slope.low < slope.per_hour < slope.high for slope in slopes)


def test_a_burst_of_some_samples_does_not_move_it() -> None:
    times = every_5_s(120)
    values = 50 + times * 10 / 3600
    values[40:50] += 300
    assert theil_sen(times.tolist(), values.tolist()).per_hour == pytest.approx(10, abs=2)


def test_two_points_are_refused() -> None:
    with pytest.raises(ValueError, match="three points, got 2"):
        theil_sen([0, 5], [1, 2])
