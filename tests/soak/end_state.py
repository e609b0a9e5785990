"""What is left of a load when it has stopped."""

from __future__ import annotations

from dataclasses import dataclass

from tests.soak.processes import ProcessSample

ZERO_WITHIN_S = 2.0
GIVE_UP_S = 60.0
"""Gauges that are not zero by now stay: that is a leak, and not a step that took long."""

REST_S = 3.0
"""Of silence, over which processor time is measured: who has a request left does not rest."""


@dataclass(frozen=True, slots=True)
class EndState:
    """zero_after_s: when the last gauge was zero; None when one never was: `left`.
    resting_cores: by process name, over REST_S."""

    zero_after_s: float | None
    left: dict[str, float]
    idle: list[ProcessSample]
    final: list[ProcessSample]
    resting_cores: dict[str, float]
