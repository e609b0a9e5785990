"""`ConnectionGuard`: does to a frontend's tcp connections what `Connections` decides.

libzmq ends no single connection of a bound socket. But its monitor tells each one's descriptor, and the kernel ends a
connection by it: libzmq then sees the end of the stream, as if the peer had left.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import struct
from collections.abc import Collection

from roundhouse.clock import Clock
from roundhouse.protocol.limits import MAX_MESH_CONNECTIONS, MESH_CONNECTIONS_SHARE
from roundhouse.transport.connections import Connections, Cut, Limit
from roundhouse.transport.socket_reader import Received
from roundhouse.transport.told import Told

WATCH_S = 0.1
"""Between two samples: what a connection may send meanwhile comes on top of its limit."""

SAMPLES_A_TURN = 256
"""Connections whose bytes are read in one go: under 1 ms. With more of them each is sampled less often."""

_TCP_INFO = 11
_BYTES_RECEIVED_AT = 128
"""Offset of `tcpi_bytes_received`, 64 bits, in Linux' `struct tcp_info`; there since 4.1."""

logger = logging.getLogger(__name__)

_WHY: dict[Limit, str] = {
    "connections": "there are too many",
    "connections_per_peer": "its key has too many",
    "revoked": "its key is not allowed",
    "bytes_before_hello": "it sends and says no Hello",
    "bytes_unread": "it sends more than one message can be, and does not end it",
}


def most_connections() -> int:
    """That the mesh may have, by the descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = MAX_MESH_CONNECTIONS if soft == resource.RLIM_INFINITY else int(soft * MESH_CONNECTIONS_SHARE)
    return min(MAX_MESH_CONNECTIONS, share)


class ConnectionGuard:
    """num_without_hello: connections that ended, for whatever reason, and no message had come by them.

    ports: the local ones of the mesh; a connection of any other is never touched."""

    def __init__(self, ports: Collection[int], clock: Clock, *, most: int | None = None) -> None:
        self.num_without_hello = 0
        self.num_cut: dict[Limit, int] = dict.fromkeys(_WHY, 0)
        self._ports = ports
        self._clock = clock
        self._told = Told()
        self._timer: asyncio.TimerHandle | None = None
        self._connections = Connections(most_connections() if most is None else most)

    def on_accepted(self, fd: int) -> None:
        self._obey(self._connections.accepted(fd, self._clock()))

    def on_disconnected(self, fd: int) -> bool:
        """Whether it may have been an engine's."""
        is_engines = self._connections.ended(fd)
        self.num_without_hello += not is_engines
        return is_engines

    def is_known(self, fd: int) -> bool:
        return self._connections.is_known(fd)

    def on_message(self, received: Received) -> bool:
        """Whether it may be handed on."""
        is_taken, cut = self._connections.delivered(
            received.fd, received.nbytes, len(received.frames), received.user_id
        )
        self._obey(cut)
        return is_taken

    def set_allowed(self, user_ids: Collection[str]) -> None:
        """The User-Ids that may have connections; those of others are cut now, or with their first message."""
        for cut in self._connections.set_allowed(user_ids):
            self._obey(cut)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Samples from here on, until `stop`."""
        self._timer = loop.call_later(WATCH_S, self._watch, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self.sample()
        self.start(loop)

    def sample(self) -> None:
        now = self._clock()
        for fd in self._connections.to_sample(SAMPLES_A_TURN):
            received = _bytes_received(fd)
            if received is not None:
                self._obey(self._connections.sampled(fd, received, now))

    def _obey(self, cut: Cut | None) -> None:
        if cut is None:
            return
        address = _shut_down(cut.fd, self._ports)
        if address is None:
            return
        self.num_cut[cut.limit] += 1
        peer = address if cut.user_id is None else cut.user_id
        if self._told.is_due(f"{peer} {cut.limit}", self._clock()):
            whose = "" if cut.user_id is None else f" of {cut.user_id}"
            logger.warning("cut a connection from %s%s: %s", address, whose, _WHY[cut.limit])


def _bytes_received(fd: int) -> int | None:
    """None when that cannot be told. A descriptor that is another's by now does no harm: it is only read from."""
    borrowed = None
    try:
        borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=fd)
        info = borrowed.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_RECEIVED_AT + 8)
    except OSError:
        return None
    finally:
        if borrowed is not None:
            borrowed.detach()
    return struct.unpack_from("=Q", info, _BYTES_RECEIVED_AT)[0] if len(info) == _BYTES_RECEIVED_AT + 8 else None


def _shut_down(fd: int, ports: Collection[int]) -> str | None:
    """The peer's address; None when `fd` is no connection of `ports`, and nothing happened.

    libzmq may close the descriptor at any moment, and the number may become somebody else's. So a copy is made first,
    which stays what it is; then it is looked at. Of `ports` it can only be a connection that came later than the one
    that was meant. When there is no descriptor left for a copy, which is when this matters most, the number itself has
    to do.
    """
    try:
        number = os.dup(fd)
    except OSError as error:
        if error.errno != errno.EMFILE:
            return None
        number = fd
    try:
        connection = socket.socket(fileno=number)
    except OSError:
        if number != fd:
            os.close(number)
        return None
    try:
        here, there = connection.getsockname(), connection.getpeername()
        if not isinstance(here, tuple) or here[1] not in ports:
            return None
        connection.shutdown(socket.SHUT_RDWR)
        return str(there[0])
    except OSError:
        return None
    finally:
        if number == fd:
            connection.detach()
        else:
            connection.close()
