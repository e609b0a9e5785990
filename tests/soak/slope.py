"""The slope of a noisy series, by Theil and Sen: the median of the slopes between all pairs of points, which a burst of
a few samples does not move. The interval is Sen's, from the spread of Kendall's tau. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

MAX_POINTS = 40
"""Neighbouring samples of memory are anything but independent, which the interval assumes; medians of so few groups of
samples nearly are."""

Z_95 = 1.96


@dataclass(frozen=True, slots=True)
class Slope:
    """In units of the series per hour; `low` and `high` bound it with 95 % confidence."""

    per_hour: float
    low: float
    high: float


def theil_sen(times_s: Sequence[float], values: Sequence[float]) -> Slope:
    """Times rise. Raises `ValueError` for fewer than three points: they have no interval."""
    if len(times_s) < 3:
        raise ValueError(f"a slope with an interval needs three points, got {len(times_s)}")
    times, medians = _grouped(np.asarray(times_s, dtype=float) / 3600.0, np.asarray(values, dtype=float))
    num_points = len(times)
    first, second = np.triu_indices(num_points, k=1)
    slopes = np.sort((medians[second] - medians[first]) / (times[second] - times[first]))
    reach = Z_95 * sqrt(num_points * (num_points - 1) * (2 * num_points + 5) / 18)
    lowest = max(0, int((len(slopes) - reach) / 2))
    highest = min(len(slopes) - 1, int((len(slopes) + reach) / 2))
    return Slope(float(np.median(slopes)), float(slopes[lowest]), float(slopes[highest]))


def _grouped(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most MAX_POINTS points: each the medians of neighbours."""
    if len(times) <= MAX_POINTS:
        return times, values
    groups = np.array_split(np.arange(len(times)), MAX_POINTS)
    return (
        np.array([np.median(times[group]) for group in groups]),
        np.array([np.median(values[group]) for group in groups]),
    )
