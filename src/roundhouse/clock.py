"""The one source of `now` for shells; decisions get `now` as an argument and never import this."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds, monotonic; only differences mean anything."""

monotonic: Clock = time.monotonic

wall: Clock = time.time
"""Seconds since 1970: for `arrival_time`, `created` and epochs, never for a deadline."""
