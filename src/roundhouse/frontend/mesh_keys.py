"""`MeshKeys`: the keys of a client of the mesh: the folder they come from, the guard that knows them, and what is told
of peers that it keeps out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from roundhouse.frontend.guard import Denial, KeyCounters, MeshGuard
from roundhouse.frontend.membership import Member
from roundhouse.protocol.identity import Peer
from roundhouse.protocol.messages import Hello
from roundhouse.transport.frontend_link import FrontendLink
from roundhouse.transport.key_folder import KeyFolder, KeyWatch
from roundhouse.transport.keys import FrontendKeys
from roundhouse.transport.told import Told

logger = logging.getLogger(__name__)


class MeshKeys:
    """folder: None on a mesh without keys; then everybody passes. It is read again between `start` and `stop`."""

    def __init__(self, folder: KeyFolder[FrontendKeys] | None) -> None:
        self.guard = MeshGuard(None if folder is None else folder.keys)
        self._folder = folder
        self._watch: KeyWatch[FrontendKeys] | None = None
        self._told = Told()

    def start(self, post: Callable[[FrontendKeys], None]) -> None:
        """`post` is called in a thread of its own, with each new version."""
        if self._folder is not None:
            self._watch = KeyWatch(self._folder, post)
            self._watch.start()

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    def may_speak(self, peer: Peer, now: float) -> bool:
        """Whether a message of `peer` is worth decoding: one of a revoked key is not."""
        if self.guard.knows(peer):
            return True
        self.guard.count_stray(peer)
        if self._told.is_due(f"{peer.user_id} revoked", now):
            logger.warning("dropped a message of %s: that key is not allowed", peer.user_id)
        return False

    def check_hello(self, peer: Peer, hello: Hello, now: float) -> Denial | None:
        """None when it may be who it says."""
        denial = self.guard.check_hello(peer, hello)
        if denial is not None and self._told.is_due(f"{peer.user_id} {denial.fault}", now):
            logger.warning("refused a Hello of engine %s: %s", hello.identity, denial.message)
        return denial

    def is_of(self, member: Member | None, peer: Peer, now: float) -> bool:
        """Whether a message of `peer` may speak for the session of `member`. None: that session is over."""
        if member is not None and member.peer == peer:
            return True
        if member is not None:
            self.guard.count_stray(peer)
            if self._told.is_due(f"{peer.user_id} stray", now):
                logger.warning("dropped a message of %s for a session of %s", peer.user_id, member.hello.identity)
        elif peer.user_id is not None and self._told.is_due(f"{peer.user_id} late", now):
            logger.warning("dropped a message of %s: it names no session that is there", peer.user_id)
        return False

    def counters(self, link: FrontendLink) -> KeyCounters:
        refused = {"key": link.num_refused_keys, "handshake": link.num_failed_handshakes}
        return KeyCounters(
            {**refused, **self.guard.num_refused},
            {**self.guard.num_dropped},
            0 if self._folder is None else self._folder.num_failures,
            link.num_zap_restarts,
        )
