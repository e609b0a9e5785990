"""`MalformedCounter`: bytes that no peer of ours would send are counted, told once a minute for each peer, and cost
nothing else."""

from __future__ import annotations

import logging

from roundhouse.transport.told import Told

logger = logging.getLogger(__name__)


class MalformedCounter:
    """One per thread. `total` may be read from anywhere."""

    def __init__(self) -> None:
        self.total = 0
        self._told = Told()

    def count(self, error: Exception, peer: str, now: float) -> None:
        """peer: whatever tells it best from others, and what it cannot make up if there is such a thing."""
        self.total += 1
        if self._told.is_due(peer, now):
            logger.warning("dropped a malformed message of %s, number %d of all: %s", peer, self.total, error)
