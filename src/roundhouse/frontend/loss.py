"""Why an engine no longer has a request that it was given, and which causes may be the request's own doing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LossCause(StrEnum):
    """Also the values of the metric's label."""

    DIED = "died"
    """It said so, with its last words."""
    UNREACHABLE = "unreachable"
    """Its connection ended: killed, or cut off."""
    GAP = "gap"
    """A frame was lost on the way."""
    REPLACED = "replaced"
    """A new session or a higher epoch has its identity."""
    STALLED = "stalled"
    """No Pong for so long that nobody waits any more."""
    OVERRUN = "overrun"
    """It sends more than this frontend can take."""
    DRAINED = "drained"
    """It leaves, as it had said."""
    REVOKED = "revoked"
    """Its key, or the server key that it came by, is no longer allowed."""


DEADLY: frozenset[LossCause] = frozenset({LossCause.DIED, LossCause.UNREACHABLE, LossCause.REPLACED})
"""What a request can bring about that kills its engine: one that is restarted at once shows as replaced. That a frame
is lost on the way tells nothing of a request, for or against."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A session is over, or is to be: `reason` in words, for people."""

    cause: LossCause
    reason: str
