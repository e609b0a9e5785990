"""`PortPair`: one ROUTER and one PULL, bound together, with one server key or with none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.identity import Peer
from roundhouse.transport import sockets
from roundhouse.transport.address import FrontendAddress, TcpAddress
from roundhouse.transport.keys import KeyPair
from roundhouse.transport.socket_reader import Frames, SocketReader

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What a reading link calls.

    on_input: [routing id, frame …] of a ROUTER, and who sent it. on_output: the frames of a PULL. on_disconnected: some
    engine's connection ended; which one, only a send can tell. on_failure: what a callback raised.
    """

    on_input: Callable[[Frames, Peer], None]
    on_output: Callable[[Frames, Peer], None]
    on_disconnected: Callable[[], None]
    on_failure: Callable[[Exception], None]


class PortPair:
    """Binds at once, reads from `start` on.

    num_failed_handshakes: those that got no answer of ZAP; what ZAP refuses it counts itself.
    Raises `ConfigError` when one of the two cannot be bound; then the other one is closed.
    """

    def __init__(
        self, context: sockets.Context, address: FrontendAddress, generation: int, server: KeyPair | None
    ) -> None:
        self.generation = generation
        self.num_failed_handshakes = 0
        here = address.of_generation(generation) if isinstance(address, TcpAddress) else address
        self.router = _bind(context, sockets.bind_router, _bindable(here.input_endpoint), server)
        try:
            self.pull = _bind(context, sockets.bind_pull, _bindable(here.output_endpoint), server)
        except ConfigError:
            self.router.close()
            raise
        watched = zmq.EVENT_DISCONNECTED | (_FAILED if generation else 0)
        self._monitors = [sockets.monitor(socket, watched) for socket in (self.router, self.pull)]
        self._readers: list[SocketReader] = []

    def start(self, callbacks: Callbacks) -> None:
        loop = asyncio.get_running_loop()

        def on_event(frames: sockets.MonitorFrames) -> None:
            if sockets.monitor_event(frames) == zmq.EVENT_DISCONNECTED:
                callbacks.on_disconnected()
            else:
                self.num_failed_handshakes += 1

        generation, on_failure = self.generation, callbacks.on_failure
        self._readers = [
            SocketReader(loop, self.pull, callbacks.on_output, on_failure, generation=generation),
            SocketReader(loop, self.router, callbacks.on_input, on_failure, generation=generation),
            *(SocketReader(loop, pair, lambda frames, _: on_event(frames), on_failure) for pair in self._monitors),
        ]

    def look_again(self) -> None:
        """After a send by the ROUTER."""
        if self._readers:
            self._readers[1].look_again()

    def drain(self, most: int) -> bool:
        """Reads up to `most` messages of each socket now. True when nothing is left."""
        are_empty = [reader.drain(most) for reader in self._readers]
        return all(are_empty)

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        for socket, monitor in zip((self.router, self.pull), self._monitors, strict=True):
            sockets.stop_monitor(socket)
            monitor.close()
            socket.close()


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
