"""`Told`: what was logged lately, so that a peer that fails again and again fills no log. Pure: `now` is given."""

from __future__ import annotations

INTERVAL_S = 60.0
MAX_PEERS = 256


class Told:
    """Once a minute for each peer; beyond `MAX_PEERS` peers a minute nothing is said."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}

    def is_due(self, peer: str, now: float) -> bool:
        """Whether `peer` may be told of now; then it counts as told."""
        told_at = self._told_at.get(peer)
        if told_at is not None and now - told_at < INTERVAL_S:
            return False
        if told_at is None and len(self._told_at) >= MAX_PEERS:
            self._told_at = {name: at for name, at in self._told_at.items() if now - at < INTERVAL_S}
            if len(self._told_at) >= MAX_PEERS:
                return False
        self._told_at[peer] = now
        return True
