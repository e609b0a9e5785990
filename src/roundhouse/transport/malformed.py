"""`MalformedCounter`: bytes that no peer of ours would send are counted, told once a minute, and cost nothing else."""

from __future__ import annotations

import logging

LOG_INTERVAL_S = 60.0

logger = logging.getLogger(__name__)


class MalformedCounter:
    """One per thread. `total` may be read from anywhere."""

    def __init__(self) -> None:
        self.total = 0
        self._told_at: float | None = None
        self._told_total = 0

    def count(self, error: Exception, peer: str, now: float) -> None:
        self.total += 1
        if self._told_at is None or now - self._told_at >= LOG_INTERVAL_S:
            fresh = self.total - self._told_total
            logger.warning("dropped %d malformed message(s), the last one from %s: %s", fresh, peer, error)
            self._told_at, self._told_total = now, self.total
