"""`SocketReader`: one ZeroMQ socket in an asyncio event loop, asyncio's own or uvloop.

ZeroMQ's descriptor is edge-triggered: it becomes readable when the socket goes from nothing to something, and a send
can eat that edge. So a reader drains, comes back by `call_soon` when it stopped early, and looks again after each send.
`zmq.asyncio` makes a future, a task switch and a poll of each message: 15 µs against 3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import zmq

from roundhouse.clock import Clock, monotonic
from roundhouse.protocol.identity import WITHOUT_KEYS, Peer
from roundhouse.transport import sockets
from roundhouse.transport.sockets import Socket

MESSAGES_A_TURN = 64
"""Before the rest of the event loop gets its turn."""

SECONDS_A_TURN = 0.01
"""The same: a message may take milliseconds. One is always read."""

NO_FD = -1

Frames = list[bytes | memoryview]


class Received(NamedTuple):
    """One message, and how it came.

    frames: the first one copied, the others as views that keep their memory alive. user_id: that ZAP gave the
    connection, with keys. fd: of the connection; it may have ended since. nbytes: of all frames.
    """

    frames: Frames
    user_id: str | None
    fd: int
    nbytes: int


def receive(socket: Socket, *, has_keys: bool = False) -> Received:
    """Raises `zmq.Again`. What is known of the connection is asked of the first frame alone: a message comes by one
    connection. User-Id costs 1 µs, the descriptor 0.2 µs."""
    frame = socket.recv(zmq.NOBLOCK, copy=False)
    frames: Frames = [frame.bytes]
    nbytes = len(frames[0])
    user_id = _user_id(frame) if has_keys else None
    fd = _fd(frame)
    while frame.more:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        frames.append(frame.buffer)
        nbytes += len(frame)
    return Received(frames, user_id, fd, nbytes)


def _fd(frame: zmq.Frame) -> int:
    try:
        fd = frame.get(zmq.SRCFD)
    except zmq.ZMQError:
        return NO_FD
    assert isinstance(fd, int)
    return fd


def _user_id(frame: zmq.Frame) -> str | None:
    try:
        return str(frame.get(b"User-Id"))  # type: ignore[arg-type]
    except (zmq.ZMQError, UnicodeDecodeError):
        return None


class SocketReader:
    """Calls `on_message` for each message, and `on_failure` once with what it raised: then nothing more is read.

    generation: of the server key of `socket`; 0 when it has none.
    on_received: is told of each message first, and says whether it may be handed on.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        socket: Socket,
        on_message: Callable[[Frames, Peer], None],
        on_failure: Callable[[Exception], None],
        *,
        generation: int = 0,
        on_received: Callable[[Received], bool] | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._loop = loop
        self._generation = generation
        self._socket = socket
        self._on_message = on_message
        self._on_failure = on_failure
        self._on_received = on_received
        self._clock = clock
        self._again: asyncio.Handle | None = None
        self._is_closed = False
        self._fd = sockets.descriptor(socket)
        loop.add_reader(self._fd, self._turn)
        self.look_again()

    def look_again(self) -> None:
        """After anything else was done with the socket."""
        if self._again is None and not self._is_closed and sockets.has_input(self._socket):
            self._again = self._loop.call_soon(self._come_back)

    def drain(self, most: int, until: float) -> bool:
        """Reads up to `most` messages now, and after the first one none when it is `until`. True when none is left."""
        try:
            for _ in range(most):
                if self._is_closed:
                    return True
                try:
                    received = receive(self._socket, has_keys=self._generation > 0)
                except zmq.Again:
                    return True
                if self._on_received is None or self._on_received(received):
                    peer = Peer(self._generation, received.user_id) if self._generation else WITHOUT_KEYS
                    self._on_message(received.frames, peer)
                if self._clock() >= until:
                    break
        except Exception as error:
            self.close()
            self._on_failure(error)
            return True
        self.look_again()
        return self._again is None

    def close(self) -> None:
        """The socket stays open. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._fd)
        if self._again is not None:
            self._again.cancel()

    def _turn(self) -> None:
        if self._again is None:
            self.drain(MESSAGES_A_TURN, self._clock() + SECONDS_A_TURN)

    def _come_back(self) -> None:
        self._again = None
        self.drain(MESSAGES_A_TURN, self._clock() + SECONDS_A_TURN)
