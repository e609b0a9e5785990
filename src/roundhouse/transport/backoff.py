"""How long to wait before the next attempt. Pure: the randomness is given."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Doubles from `first_s` up to `longest_s`; each wait is a random half to whole of that, so that a fleet spreads.

    random: uniform in [0, 1).
    """

    def __init__(self, random: Callable[[], float], *, first_s: float, longest_s: float) -> None:
        self._random = random
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next_s(self) -> float:
        wait_s = self._next_s * (0.5 + 0.5 * self._random())
        self._next_s = min(self._longest_s, self._next_s * 2)
        return wait_s

    def reset(self) -> None:
        """After a success."""
        self._next_s = self._first_s
