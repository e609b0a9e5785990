"""`Connections`: the tcp connections to a frontend's mesh, by file descriptor, and which of them are too much.

libzmq accepts whoever comes, until the process has no descriptors left, and it has no limit on what it gathers for a
message that is not complete. So both are counted here: how many are open, how many bytes the kernel has received on
each, and how many of them came out of ZeroMQ as messages. A connection is *known* once a message came by it: until then
it may be anybody's, with or without a key.

Pure: `now`, events and numbers in, the connections to cut out. `connection_guard` has the system calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from roundhouse.protocol.limits import BYTES_A_SECOND_FOR_HEARTBEATS, MAX_BYTES_BEFORE_HELLO, MAX_BYTES_UNREAD

FRAME_OVERHEAD_BYTES = 64
"""Of a frame on the wire, encrypted: 42 at most. Rather too much: what is over is forgotten with the next sample."""

Limit = Literal["connections", "bytes_before_hello", "bytes_unread"]


class Cut(NamedTuple):
    """To be ended, because of `limit`."""

    fd: int
    limit: Limit


@dataclass(slots=True)
class _Connection:
    accounted_at: float
    accounted: float = 0.0
    is_known: bool = False


class Connections:
    """most: that may be open; `accepted` says which is one too many. What was cut is open no longer, and is remembered
    until it has ended."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[int, _Connection] = {}
        self._cut_known: dict[int, bool] = {}
        self._unknown: dict[int, None] = {}
        self._to_sample: list[int] = []

    def __len__(self) -> int:
        return len(self._open)

    def accepted(self, fd: int, now: float) -> Cut | None:
        """When there are too many, the oldest that is unknown goes: an engine says Hello within milliseconds, so that
        it comes in however many others do. When all are known the new one goes."""
        self._cut_known.pop(fd, None)
        self._open[fd] = _Connection(now)
        self._unknown.pop(fd, None)
        self._unknown[fd] = None
        if len(self._open) <= self._most:
            return None
        return self._cut(next(iter(self._unknown)), "connections")

    def ended(self, fd: int) -> bool:
        """Whether it may have been an engine's: known, or not counted here."""
        if fd in self._cut_known:
            return self._cut_known.pop(fd)
        self._unknown.pop(fd, None)
        connection = self._open.pop(fd, None)
        return connection is None or connection.is_known

    def is_known(self, fd: int) -> bool:
        connection = self._open.get(fd)
        return connection is not None and connection.is_known

    def delivered(self, fd: int, nbytes: int, num_frames: int) -> None:
        """A whole message came out of ZeroMQ."""
        connection = self._open.get(fd)
        if connection is None:
            return
        connection.accounted += nbytes + num_frames * FRAME_OVERHEAD_BYTES
        if not connection.is_known:
            connection.is_known = True
            self._unknown.pop(fd, None)

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
            return self._cut(fd, "bytes_before_hello")
        if unread > MAX_BYTES_UNREAD:
            return self._cut(fd, "bytes_unread")
        return None

    def _cut(self, fd: int, limit: Limit) -> Cut:
        self._unknown.pop(fd, None)
        self._cut_known[fd] = self._open.pop(fd).is_known
        return Cut(fd, limit)
