"""Who is who on the mesh: numbers that must not mix, and the routing id of a link session."""

from __future__ import annotations

from typing import NamedTuple, NewType

from roundhouse.protocol.errors import ConfigError, MalformedFrame
from roundhouse.protocol.limits import MAX_IDENTITY_BYTES

EngineIdentity = NewType("EngineIdentity", str)
"""Granted by the operator (or by `serve`), stable over restarts of the engine."""

EngineIndex = NewType("EngineIndex", int)
"""Dense number of an engine inside one frontend: what `data_parallel_rank` pins to."""

SessionId = NewType("SessionId", int)
"""Number of a link session inside one frontend, random, 63 bits, never used twice."""

ClientIndex = NewType("ClientIndex", int)
"""Number of a link session inside one engine; local to the engine and never read from the wire."""

ROUTING_NONCE_BYTES = 16


class Peer(NamedTuple):
    """Who is at the other end of a frontend's connection, as the transport vouches for it.

    generation: of the server key that it connected by; 0 where there are no keys.
    user_id: what the key that it proved to have stands for; None where there are no keys.
    """

    generation: int
    user_id: str | None


WITHOUT_KEYS = Peer(0, None)
"""Everybody, on a mesh that asks for no key."""


def check_identity(identity: str) -> EngineIdentity:
    """Raises `ConfigError` for what cannot be an engine's identity."""
    name = identity.encode("utf-8", "surrogatepass")
    if not name or len(name) > MAX_IDENTITY_BYTES or b"\0" in name:
        raise ConfigError(f"an engine identity has 1 to {MAX_IDENTITY_BYTES} bytes and no NUL, got {identity!r:.200}")
    return EngineIdentity(identity)


def routing_id(identity: EngineIdentity, nonce: bytes) -> bytes:
    """The ROUTER routing id of one link session: identity, NUL, `nonce` (16 random bytes).

    A fresh one for each session: with a fixed routing id a second peer either stays unheard or, under
    ROUTER_HANDOVER, takes the first one's place before any check of ours (both measured with libzmq 4.3.5).
    """
    assert len(nonce) == ROUTING_NONCE_BYTES
    return check_identity(identity).encode() + b"\0" + nonce


def parse_routing_id(raw: bytes) -> tuple[EngineIdentity, bytes]:
    """Identity and nonce of a routing id. Raises `MalformedFrame` for anything that `routing_id` cannot make."""
    head, nonce = raw[:-ROUTING_NONCE_BYTES], raw[-ROUTING_NONCE_BYTES:]
    name = head[:-1]
    if not name or head[-1:] != b"\0" or b"\0" in name or len(name) > MAX_IDENTITY_BYTES:
        raise MalformedFrame("not a routing id")
    try:
        return EngineIdentity(name.decode()), nonce
    except UnicodeDecodeError:
        raise MalformedFrame("a routing id's identity is not UTF-8") from None
