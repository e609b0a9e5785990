"""When a local engine process that ended is started again. Pure.

An engine that ends before any engine was ever admitted means that the model or a flag is wrong: the whole command
gives up, with its exit code. After that an engine is always started again: at once the first time, then later and
later, and at once again after it has lived for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
HEALTHY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class GiveUp:
    exit_code: int


@dataclass(frozen=True, slots=True)
class StartAgain:
    after_s: float


@dataclass(slots=True)
class RestartPolicy:
    """Of one engine process. `failures` counts the ends in a row that came before it was healthy."""

    failures: int = 0

    def on_exit(self, exit_code: int, lived_s: float, *, was_serving: bool) -> GiveUp | StartAgain:
        """What to do about an end that nobody asked for. `was_serving`: an engine of this command was admitted once."""
        if not was_serving:
            return GiveUp(exit_code if exit_code > 0 else 1)
        self.failures = 1 if lived_s >= HEALTHY_AFTER_S else self.failures + 1
        if self.failures == 1:
            return StartAgain(0.0)
        return StartAgain(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** (self.failures - 2)))
