"""`Deadline`: something that has to have happened some seconds after it began to be owed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """Belongs to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, on_expiry: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._on_expiry = on_expiry
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Nothing when it runs already: what is owed is not owed later because more of it came."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._expire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self._on_expiry()
