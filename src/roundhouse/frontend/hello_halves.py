"""`HelloHalves`: brings together the two Hellos of one engine, the one by ROUTER and the one by PULL.

Only both together prove that requests and outputs of a session have the same engine at their other end: PULL does not
tell who sent a message. With keys it does, and both have to come from one peer: the same key, by the same server key.
Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.identity import WITHOUT_KEYS, Peer, parse_routing_id
from roundhouse.protocol.limits import MAX_ENGINES, MAX_HELLO_HALVES_PER_ENGINE
from roundhouse.protocol.messages import Hello

HALF_S = 5.0
"""How long one half waits for the other."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """Both halves of one Hello."""

    routing_id: bytes
    hello: Hello
    peer: Peer = WITHOUT_KEYS


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two halves with one nonce that differ: somebody is wrong, and the one at `routing_id` can be told."""

    routing_id: bytes
    peer: Peer = WITHOUT_KEYS


@dataclass(frozen=True, slots=True)
class _Half:
    hello: Hello
    routing_id: bytes | None
    came_at: float


class HelloHalves:
    """At most `MAX_ENGINES` wait at a time, the oldest goes first; of one engine `MAX_HELLO_HALVES_PER_ENGINE`, and a
    further one is not taken, so that nobody pushes out those of others."""

    def __init__(self) -> None:
        self.num_over = 0
        self._halves: dict[tuple[Peer, str, bytes], _Half] = {}
        self._num_waiting: Counter[tuple[Peer, str]] = Counter()

    def on_router(
        self, routing_id: bytes, hello: Hello, now: float, peer: Peer = WITHOUT_KEYS
    ) -> Greeting | Mismatch | None:
        """None while the other half is not here. Raises `MalformedFrame` for a Hello that is not its routing id's."""
        identity, nonce = parse_routing_id(routing_id)
        if (identity, nonce) != (hello.identity, hello.nonce):
            raise MalformedFrame("a Hello that is not of its routing id")
        return self._match(_Half(hello, routing_id, now), peer, now)

    def on_pull(self, hello: Hello, now: float, peer: Peer = WITHOUT_KEYS) -> Greeting | Mismatch | None:
        """None while the other half is not here. Raises `MalformedFrame` for the second of its kind."""
        return self._match(_Half(hello, None, now), peer, now)

    def _match(self, half: _Half, peer: Peer, now: float) -> Greeting | Mismatch | None:
        self._forget_old(now)
        key = (peer, half.hello.identity, half.hello.nonce)
        other = self._halves.get(key)
        if other is None:
            if self._num_waiting[key[:2]] >= MAX_HELLO_HALVES_PER_ENGINE:
                self.num_over += 1
                return None
            self._halves[key] = half
            self._num_waiting[key[:2]] += 1
            return None
        if (half.routing_id is None) == (other.routing_id is None):
            raise MalformedFrame(f"a second Hello of {half.hello.identity} by the same socket")
        self._forget(key)
        routing_id = half.routing_id or other.routing_id or b""
        return Greeting(routing_id, half.hello, peer) if other.hello == half.hello else Mismatch(routing_id, peer)

    def _forget_old(self, now: float) -> None:
        while self._halves:
            key, oldest = next(iter(self._halves.items()))
            if len(self._halves) < MAX_ENGINES and now - oldest.came_at < HALF_S:
                return
            self._forget(key)

    def _forget(self, key: tuple[Peer, str, bytes]) -> None:
        del self._halves[key]
        self._num_waiting[key[:2]] -= 1
        if not self._num_waiting[key[:2]]:
            del self._num_waiting[key[:2]]
