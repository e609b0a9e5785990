"""`PortPair`: one ROUTER and one PULL, bound together, with one server key or with none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

import zmq

from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.identity import Peer
from roundhouse.transport import sockets
from roundhouse.transport.address import FrontendAddress, TcpAddress
from roundhouse.transport.connection_guard import ConnectionGuard
from roundhouse.transport.keys import KeyPair
from roundhouse.transport.socket_reader import Frames, Received, SocketReader

LONGEST_CATCH_UP = 4096
"""Events of a monitor that are read at once for one message."""

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a reading link calls.

    on_input: [routing id, frame …] of a ROUTER, and who sent it. on_output: the frames of a PULL. on_disconnected: some
    engine's connection ended; which one, only a send can tell. One by which no message came was nobody's. on_failure:
    what a callback raised.
    """

    on_input: Callable[[Frames, Peer], None]
    on_output: Callable[[Frames, Peer], None]
    on_disconnected: Callable[[], None]
    on_failure: Callable[[Exception], None]


class PortPair:
    """Binds at once, reads from `start` on.

    num_failed_handshakes: those that got no answer of ZAP; what ZAP refuses it counts itself.
    guard: of the tcp connections of all pairs; None on ipc, where nobody else can connect.
    Raises `ConfigError` when one of the two cannot be bound; then the other one is closed.
    """

    def __init__(
        self,
        context: sockets.Context,
        address: FrontendAddress,
        generation: int,
        server: KeyPair | None,
        guard: ConnectionGuard | None = None,
    ) -> None:
        self._guard = guard
        self.generation = generation
        self.server = server
        self.num_failed_handshakes = 0
        here = address.of_generation(generation) if isinstance(address, TcpAddress) else address
        self.router = _bind(context, sockets.bind_router, _bindable(here.input_endpoint), server)
        try:
            self.pull = _bind(context, sockets.bind_pull, _bindable(here.output_endpoint), server)
        except ConfigError:
            self.router.close()
            raise
        watched = zmq.EVENT_DISCONNECTED | (_FAILED if generation else 0) | (zmq.EVENT_ACCEPTED if guard else 0)
        self._monitors = [sockets.monitor(socket, watched) for socket in (self.router, self.pull)]
        self._readers: list[SocketReader] = []
        self._monitor_readers: list[SocketReader] = []

    def start(self, callbacks: Callbacks) -> None:
        loop = asyncio.get_running_loop()

        guard, on_failure = self._guard, callbacks.on_failure
        on_received = None if guard is None else partial(self._on_received, guard)

        def on_event(frames: sockets.MonitorFrames, _: Peer) -> None:
            event, fd = sockets.monitor_event(frames)
            if event == zmq.EVENT_DISCONNECTED:
                if guard is None or guard.on_disconnected(fd):
                    callbacks.on_disconnected()
            elif event == zmq.EVENT_ACCEPTED:
                assert guard is not None
                guard.on_accepted(fd)
            else:
                self.num_failed_handshakes += 1

        def reader(socket: sockets.Socket, on_message: Callable[[Frames, Peer], None]) -> SocketReader:
            return SocketReader(
                loop, socket, on_message, on_failure, generation=self.generation, on_received=on_received
            )

        self._readers = [reader(self.pull, callbacks.on_output), reader(self.router, callbacks.on_input)]
        self._monitor_readers = [SocketReader(loop, pair, on_event, on_failure) for pair in self._monitors]

    def look_again(self) -> None:
        """After a send by the ROUTER."""
        if self._readers:
            self._readers[1].look_again()

    def drain(self, most: int, until: float) -> bool:
        """Reads up to `most` messages of each socket now, as `SocketReader.drain`. True when none is left."""
        are_empty = [reader.drain(most, until) for reader in [*self._readers, *self._monitor_readers]]
        return all(are_empty)

    def close(self) -> None:
        for reader in [*self._readers, *self._monitor_readers]:
            reader.close()
        for socket, monitor in zip((self.router, self.pull), self._monitors, strict=True):
            sockets.stop_monitor(socket)
            monitor.close()
            socket.close()

    def _on_received(self, guard: ConnectionGuard, received: Received) -> bool:
        if not guard.is_known(received.fd):
            # Its own ACCEPTED, and the DISCONNECTED of the one that had this number before, came before its message.
            for reader in self._monitor_readers:
                reader.drain(LONGEST_CATCH_UP, inf)
        return guard.on_message(received)


def _bindable(endpoint: str) -> str:
    # libzmq takes a name at bind for a network interface.
    return endpoint.replace("tcp://localhost:", "tcp://127.0.0.1:").replace("tcp://*:", "tcp://0.0.0.0:")


def _bind(
    context: sockets.Context,
    bind: Callable[[sockets.Context, str, KeyPair | None], sockets.Socket],
    endpoint: str,
    server: KeyPair | None,
) -> sockets.Socket:
    try:
        return bind(context, endpoint, server)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot listen on {endpoint}: {error.strerror}") from None
