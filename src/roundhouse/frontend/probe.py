"""`Probe`: pings to everybody after some connection ended, since only a send can tell whose it was.

    event                   at rest                 soon to ping             later to ping
    a connection ended      ping, then soon again   restart at that ping     ping, then soon again
    the timer               –                       ping, next longer gap    ping, next longer gap, or rest

However many connections end, one series is under way, and at most two pings leave each `GAPS_S[0]`: one by the timer,
and one for a connection that ended just after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GAPS_S = (0.02, 0.08, 0.2)
"""libzmq tells of a broken connection a little before sends to it fail."""


class Probe:
    """later: calls back after seconds. ping_all: one ping to each engine, now."""

    def __init__(
        self, later: Callable[[float, Callable[[], None]], asyncio.TimerHandle], ping_all: Callable[[], None]
    ) -> None:
        self._later = later
        self._ping_all = ping_all
        self._timer: asyncio.TimerHandle | None = None
        self._gap = 0
        self._restarts = False

    def on_disconnected(self) -> None:
        if self._timer is not None and self._gap == 0:
            self._restarts = True
            return
        if self._timer is not None:
            self._timer.cancel()
        self._ping_and_wait(0)

    def _on_timer(self) -> None:
        self._timer = None
        self._ping_and_wait(0 if self._restarts else self._gap + 1)

    def _ping_and_wait(self, gap: int) -> None:
        self._restarts = False
        self._gap = gap
        if gap < len(GAPS_S):
            self._timer = self._later(GAPS_S[gap], self._on_timer)
        self._ping_all()
