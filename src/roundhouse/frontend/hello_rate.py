"""`HelloRate`: how many Hellos each peer may send. A token bucket for each; pure, `now` is given.

A Hello costs little to read and much to believe: two of them end the session before, move its requests and are told in
the log twice. An engine of ours sends two for each session, and makes one a second at most when none lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from roundhouse.protocol.limits import HELLO_BURST, HELLOS_A_SECOND, MAX_ENGINES


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class HelloRate:
    """Remembers at most `MAX_ENGINES` peers: who has been quiet the longest is forgotten, and begins anew."""

    def __init__(self, *, per_s: float = HELLOS_A_SECOND, burst: int = HELLO_BURST) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: dict[str, _Bucket] = {}
        self.num_over = 0

    def take(self, peer: str, now: float) -> bool:
        """Whether a Hello of `peer` may be looked at; one that may not is counted and costs the peer nothing more."""
        bucket = self._buckets.pop(peer, None) or _Bucket(self._burst, -inf)
        if bucket.filled_at < now:
            bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.filled_at) * self._per_s)
            bucket.filled_at = now
        if len(self._buckets) >= MAX_ENGINES:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[peer] = bucket
        if bucket.tokens < 1:
            self.num_over += 1
            return False
        bucket.tokens -= 1
        return True
