"""An asyncio event loop whose time is what its timers wait for: an hour passes at once. The idea is looptime's."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Where the loop would sleep, its clock goes on instead."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class FakeTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._fake = _Selector()
        super().__init__(self._fake)

    def time(self) -> float:
        return self._fake.now

    def stand_still(self, seconds: float) -> None:
        """Time passes and nothing runs, as when the process is stopped."""
        self._fake.now += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
        return runner.run(main)
