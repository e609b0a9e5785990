"""`MeshGuard`: whether a peer may be who it says it is. ZAP says whose key a connection has proved; this compares.

Pure. Without keys everything passes, and the session's number alone tells who speaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from roundhouse.protocol.identity import Peer
from roundhouse.protocol.messages import Hello
from roundhouse.transport.keys import FrontendKeys, Grant

PeerFault = Literal["revoked", "identity", "epoch"]
FrameFault = Literal["revoked", "user_id"]


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a Hello is refused: the metric's label, and in words."""

    fault: PeerFault
    message: str


@dataclass(frozen=True, slots=True)
class KeyCounters:
    """What keys kept out, from the client's start on; by the labels of the metrics where there are some."""

    num_refused_peers: Mapping[str, int]
    num_dropped_frames: Mapping[str, int]
    num_reload_failures: int = 0
    num_zap_restarts: int = 0


@dataclass(slots=True)
class MeshGuard:
    """keys: None on a mesh without."""

    keys: FrontendKeys | None
    num_refused: dict[PeerFault, int] = field(default_factory=lambda: {"revoked": 0, "identity": 0, "epoch": 0})
    num_dropped: dict[FrameFault, int] = field(default_factory=lambda: {"revoked": 0, "user_id": 0})
    _grants: dict[Peer, Grant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.keys is not None:
            self.set_keys(self.keys)

    def set_keys(self, keys: FrontendKeys) -> None:
        self.keys = keys
        self._grants = {
            Peer(generation, grant.user_id): grant for generation in keys.servers for grant in keys.grants.values()
        }

    def knows(self, peer: Peer) -> bool:
        """Whether its key, and the server key that it connected by, are in force."""
        return self.keys is None or peer in self._grants

    def check_hello(self, peer: Peer, hello: Hello) -> Denial | None:
        """Counts what it denies."""
        if self.keys is None:
            return None
        denial = self._denial(self._grants.get(peer), hello)
        if denial is not None:
            self.num_refused[denial.fault] += 1
        return denial

    def count_stray(self, peer: Peer) -> bool:
        """A frame that is not of its peer's session: whether it is because of keys. Then it is counted."""
        if self.keys is None:
            return False
        self.num_dropped["user_id" if peer in self._grants else "revoked"] += 1
        return True

    def _denial(self, grant: Grant | None, hello: Hello) -> Denial | None:
        if grant is None:
            return Denial("revoked", "that key is no longer allowed")
        if hello.identity != grant.identity:
            return Denial("identity", f"that key is engine {grant.identity}'s, not {hello.identity}'s")
        if grant.epoch is not None and hello.epoch[0] != grant.epoch:
            return Denial("epoch", f"that key is for epoch {grant.epoch}, not {hello.epoch[0]}")
        return None
