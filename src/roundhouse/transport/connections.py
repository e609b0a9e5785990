"""`Connections`: the tcp connections to a frontend's mesh, by file descriptor, and which of them are too much.

libzmq accepts whoever comes, until the process has no descriptors left, and it has no limit on what it gathers for a
message that is not complete. So both are counted here: how many are open, how many bytes the kernel has received on
each, and how many of them came out of ZeroMQ as messages. A connection is *known* once a message came by it: until then
it may be anybody's, with or without a key. With keys its messages tell the User-Id too: of one key only so many
connections stay, and none of a key that is allowed no longer.

A message may come out of ZeroMQ after its connection has ended, and the descriptor's number may be another
connection's by then. So the User-Id that a number had before is kept: its messages cost the next one nothing.

Pure: `now`, events and numbers in, the connections to cut out. `connection_guard` has the system calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

from roundhouse.protocol.limits import (
    BYTES_A_SECOND_FOR_HEARTBEATS,
    MAX_BYTES_BEFORE_HELLO,
    MAX_BYTES_UNREAD,
    MAX_CONNECTIONS_PER_PEER,
)

FRAME_OVERHEAD_BYTES = 64
"""Of a frame on the wire, encrypted: 42 at most. Rather too much: what is over is forgotten with the next sample."""

Limit = Literal["connections", "connections_per_peer", "revoked", "bytes_before_hello", "bytes_unread"]
"""revoked: a key that is not allowed may have none."""


class Cut(NamedTuple):
    """To be ended, because of `limit`. user_id: whose it is, where that is known."""

    fd: int
    limit: Limit
    user_id: str | None = None


class Delivery(NamedTuple):
    """What becomes of a message, and of the connection that it came by."""

    is_taken: bool
    cut: Cut | None = None


TAKEN = Delivery(True)
DROPPED = Delivery(False)


@dataclass(slots=True)
class _Connection:
    """former: the User-Id of the one that had this descriptor before."""

    accounted_at: float
    former: str | None = None
    accounted: float = 0.0
    is_known: bool = False
    user_id: str | None = None


class Connections:
    """most: that may be open; `accepted` says which is one too many. What was cut is open no longer, and nothing
    that came by it is taken until its number is used again."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[int, _Connection] = {}
        self._cut: dict[int, _Connection] = {}
        self._former: dict[int, str] = {}
        self._num_of: Counter[str] = Counter()
        self._allowed: frozenset[str] | None = None
        self._unknown: dict[int, None] = {}
        self._to_sample: list[int] = []

    def __len__(self) -> int:
        return len(self._open)

    def accepted(self, fd: int, now: float) -> Cut | None:
        """When there are too many, the oldest that is unknown goes: an engine says Hello within milliseconds, so that
        it comes in however many others do. When all are known the new one goes."""
        self._close(fd)
        cut = self._cut.pop(fd, None)
        former = self._former.pop(fd, None)
        self._open[fd] = _Connection(now, former if cut is None else cut.user_id)
        self._unknown[fd] = None
        if len(self._open) <= self._most:
            return None
        return self._cut_off(next(iter(self._unknown)), "connections")

    def ended(self, fd: int) -> bool:
        """Whether it may have been an engine's: known, or not counted here."""
        connection = self._close(fd) or self._cut.get(fd)
        return connection is None or connection.is_known

    def is_known(self, fd: int) -> bool:
        connection = self._open.get(fd)
        return connection is not None and connection.is_known

    def set_allowed(self, user_ids: Collection[str]) -> list[Cut]:
        """The User-Ids that may have connections, from here on; those of others are to be cut."""
        allowed = self._allowed = frozenset(user_ids)
        revoked = [fd for fd, each in self._open.items() if each.user_id is not None and each.user_id not in allowed]
        return [self._cut_off(fd, "revoked") for fd in revoked]

    def delivered(self, fd: int, nbytes: int, num_frames: int, user_id: str | None = None) -> Delivery:
        """A whole message came out of ZeroMQ. user_id: of who sent it, with keys. Of too many connections of one
        User-Id the newest goes, which is the one that speaks for the first time."""
        if fd in self._cut:
            return DROPPED
        connection = self._open.get(fd)
        if connection is None:
            return TAKEN
        if not connection.is_known or user_id != connection.user_id:
            limit = self._limit_of(user_id)
            is_formers = user_id is not None and user_id == connection.former
            if limit is not None:
                return DROPPED if is_formers else Delivery(False, self._cut_off(fd, limit, user_id))
            if not is_formers or not connection.is_known:
                self._know(fd, connection, user_id)
        connection.accounted += nbytes + num_frames * FRAME_OVERHEAD_BYTES
        return TAKEN

    def to_sample(self, most: int) -> list[int]:
        """The next ones in turn, so that with few each is sampled each time."""
        if not self._to_sample:
            self._to_sample = list(self._open)
        due, self._to_sample = self._to_sample[:most], self._to_sample[most:]
        return [fd for fd in due if fd in self._open]

    def sampled(self, fd: int, received: int, now: float) -> Cut | None:
        """received: bytes on this connection since it was accepted."""
        connection = self._open.get(fd)
        if connection is None:
            return None
        heartbeats = (now - connection.accounted_at) * BYTES_A_SECOND_FOR_HEARTBEATS
        connection.accounted_at = now
        # Never more than came: nobody saves up by many small frames or by silence what it hides later.
        connection.accounted = min(received, connection.accounted + heartbeats)
        unread = received - connection.accounted
        if not connection.is_known and unread > MAX_BYTES_BEFORE_HELLO:
            return self._cut_off(fd, "bytes_before_hello")
        if unread > MAX_BYTES_UNREAD:
            return self._cut_off(fd, "bytes_unread")
        return None

    def _limit_of(self, user_id: str | None) -> Limit | None:
        """That one more connection of it would pass."""
        if user_id is None:
            return None
        if self._allowed is not None and user_id not in self._allowed:
            return "revoked"
        return "connections_per_peer" if self._num_of[user_id] >= MAX_CONNECTIONS_PER_PEER else None

    def _know(self, fd: int, connection: _Connection, user_id: str | None) -> None:
        self._uncount(connection)
        connection.is_known, connection.user_id = True, user_id
        self._unknown.pop(fd, None)
        if user_id is not None:
            self._num_of[user_id] += 1

    def _uncount(self, connection: _Connection) -> None:
        if connection.user_id is not None:
            self._num_of[connection.user_id] -= 1
            if not self._num_of[connection.user_id]:
                del self._num_of[connection.user_id]

    def _close(self, fd: int) -> _Connection | None:
        self._unknown.pop(fd, None)
        connection = self._open.pop(fd, None)
        if connection is not None:
            self._uncount(connection)
            if connection.user_id is not None:
                self._former[fd] = connection.user_id
        return connection

    def _cut_off(self, fd: int, limit: Limit, user_id: str | None = None) -> Cut:
        connection = self._close(fd)
        assert connection is not None
        connection.user_id = user_id or connection.user_id
        self._cut[fd] = connection
        return Cut(fd, limit, connection.user_id)
