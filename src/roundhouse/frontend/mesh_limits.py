"""`MeshLimits`: what peers of the mesh have had too much of. Counted by limit, and told once a minute for each peer."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from roundhouse.frontend.hello_rate import HelloRate
from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.frames import ENGINE_TYPES, size_of
from roundhouse.protocol.identity import Peer
from roundhouse.protocol.limits import MAX_HELLO_BYTES
from roundhouse.protocol.messages import Hello
from roundhouse.protocol.serial import Buffer
from roundhouse.transport.told import Told

logger = logging.getLogger(__name__)

_HELLO = ENGINE_TYPES[Hello]


def is_hello(frames: Sequence[Buffer]) -> bool:
    """By its type alone. frames: [type, payload …]."""
    return bytes(frames[0][:2]) == _HELLO


def check_hello_size(frames: Sequence[Buffer]) -> None:
    """Before anything is decoded. frames: [type, payload …] of any message. Raises `MalformedFrame`."""
    if is_hello(frames) and size_of(frames) > MAX_HELLO_BYTES:
        raise MalformedFrame(f"a Hello of {size_of(frames)} bytes")


class MeshLimits:
    def __init__(self) -> None:
        self._rate = HelloRate()
        self._told = Told()

    def may_greet(self, peer: Peer, hello: Hello, now: float) -> bool:
        """Whether this Hello may be looked at. Without keys the peer is who it says it is, here as everywhere."""
        name = peer.user_id or hello.identity
        if self._rate.take(name, now):
            return True
        if self._told.is_due(name, now):
            logger.warning("dropped a Hello of %.200s: it sends too many", name)
        return False

    def counters(self, num_halves_over: int, num_cut: Mapping[str, int]) -> dict[str, int]:
        """By the label of the metric. num_cut: connections, as the link counts them."""
        return {"hello_rate": self._rate.num_over, "hello_halves": num_halves_over, **num_cut}
