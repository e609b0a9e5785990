"""The machine of an engine that leaves: serving → draining → aborting.

SERVING takes requests. DRAINING takes none and lets the running ones end until its deadline. ABORTING ends what is
left at once. Asking a second time skips the deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from roundhouse.protocol.machine import Machine


class ShutdownState(Enum):
    SERVING = "serving"
    DRAINING = "draining"
    ABORTING = "aborting"


@dataclass(frozen=True, slots=True)
class Asked:
    pass


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    pass


TABLE: dict[tuple[ShutdownState, type], ShutdownState] = {
    (ShutdownState.SERVING, Asked): ShutdownState.DRAINING,
    (ShutdownState.DRAINING, Asked): ShutdownState.ABORTING,
    (ShutdownState.DRAINING, DeadlinePassed): ShutdownState.ABORTING,
    (ShutdownState.ABORTING, Asked): ShutdownState.ABORTING,
    (ShutdownState.ABORTING, DeadlinePassed): ShutdownState.ABORTING,
}


class Shutdown:
    """`grace_s` seconds lie between the first ask and the deadline."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self._machine = Machine("shutdown", TABLE, ShutdownState.SERVING)
        self._deadline: float | None = None

    @property
    def state(self) -> ShutdownState:
        return self._machine.state

    def ask(self, now: float) -> ShutdownState:
        """One request to leave. Returns the state after it."""
        before, after = self._machine.move(Asked)
        if before is ShutdownState.SERVING:
            self._deadline = now + self.grace_s
        return after

    def is_overdue(self, now: float) -> bool:
        """Whether what still runs must end now."""
        if self.state is ShutdownState.DRAINING and self._deadline is not None and now >= self._deadline:
            self._machine.move(DeadlinePassed)
        return self.state is ShutdownState.ABORTING
