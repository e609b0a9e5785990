"""`FrontendLink`: a frontend's side of the mesh, ROUTER and PULL, bound, in an asyncio event loop."""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import zmq

from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.frames import size_of
from roundhouse.protocol.limits import MAX_BYTES_WAITING_PER_PEER
from roundhouse.protocol.serial import Buffer
from roundhouse.transport import sockets
from roundhouse.transport.address import FrontendAddress, IpcAddress, TcpAddress, parse_address
from roundhouse.transport.ipc_folder import IpcFolder, fresh_folder
from roundhouse.transport.socket_reader import Frames, SocketReader

LONGEST_DRAIN = 4096
"""Messages of one socket that are read in one go before deadlines are judged."""


class SendResult(Enum):
    SENT = "sent"
    GONE = "the peer is gone"
    FULL = "the peer does not read"


def fresh_ipc_address() -> str:
    """A new private folder for one frontend and its local engines; `FrontendLink.close` removes it, or the next call
    of this once its owner was killed. Raises `ConfigError`; then nothing is left behind."""
    return str(fresh_folder())


@dataclass(frozen=True, slots=True)
class _Pending:
    """Sent without a copy and not yet done; `frames` are here to stay alive."""

    tracker: zmq.MessageTracker
    routing_id: bytes
    frames: list[Buffer]


class FrontendLink:
    """Binds at once, reads from `start` on. All methods belong to one event loop.

    insecure_mesh: allows a tcp address that others than this machine can reach, with no key asked for.
    Raises `ConfigError` when the address cannot be bound; then nothing is left behind.
    """

    def __init__(self, address: str, *, insecure_mesh: bool = False) -> None:
        self.address: FrontendAddress = parse_address(address)
        _check_reach(self.address, insecure_mesh)
        self._folder = IpcFolder(self.address) if isinstance(self.address, IpcAddress) else None
        self._context = zmq.Context()
        try:
            endpoints = (_bindable(self.address.input_endpoint), _bindable(self.address.output_endpoint))
            self.input_socket = _bind(self._context, sockets.bind_router, endpoints[0])
            self.output_socket = _bind(self._context, sockets.bind_pull, endpoints[1])
        except ConfigError:
            self._context.destroy()
            if self._folder is not None:
                self._folder.close()
            raise
        self._monitors = [
            sockets.monitor(socket, zmq.EVENT_DISCONNECTED) for socket in (self.input_socket, self.output_socket)
        ]
        self._readers: list[SocketReader] = []
        self._pending: deque[_Pending] = deque()
        self._is_closed = False

    def start(
        self,
        *,
        on_input: Callable[[Frames], None],
        on_output: Callable[[Frames], None],
        on_disconnected: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """on_input: [routing id, frame …] of the ROUTER. on_output: the frames of the PULL. on_disconnected: some
        engine's connection ended; which one, only a send can tell. on_failure: what a callback raised."""
        loop = asyncio.get_running_loop()
        self._readers = [
            SocketReader(loop, self.output_socket, on_output, on_failure),
            SocketReader(loop, self.input_socket, on_input, on_failure),
            *(SocketReader(loop, pair, lambda _: on_disconnected(), on_failure) for pair in self._monitors),
        ]

    def send(self, routing_id: bytes, frames: list[Buffer]) -> SendResult:
        """Never waits. `frames` and what they are views of must not change afterwards."""
        self._reclaim()
        if self._has_too_much_pending(routing_id):
            return SendResult.FULL
        try:
            tracker = sockets.send_frames(self.input_socket, [routing_id, *frames])
            if tracker is not None:
                self._pending.append(_Pending(tracker, routing_id, frames))
        except zmq.Again:
            return SendResult.FULL
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return SendResult.GONE
        finally:
            if self._readers:
                self._readers[1].look_again()
        return SendResult.SENT

    def _reclaim(self) -> None:
        while self._pending and self._pending[0].tracker.done:
            self._pending.popleft()

    def _has_too_much_pending(self, routing_id: bytes) -> bool:
        waiting = sum(size_of(pending.frames) for pending in self._pending if pending.routing_id == routing_id)
        return waiting > MAX_BYTES_WAITING_PER_PEER

    def notice_departures(self) -> None:
        """Makes the next sends see every connection that has ended by now: libzmq looks at most once a millisecond."""
        sockets.has_input(self.input_socket)

    def drain(self) -> bool:
        """Reads what has come, so that deadlines can be judged. False when there was too much for one go."""
        are_empty = [reader.drain(LONGEST_DRAIN) for reader in self._readers]
        return all(are_empty)

    def close(self) -> None:
        """Idempotent. What was not sent yet is dropped."""
        if self._is_closed:
            return
        self._is_closed = True
        for reader in self._readers:
            reader.close()
        for socket, pair in zip((self.input_socket, self.output_socket), self._monitors, strict=True):
            sockets.stop_monitor(socket)
            pair.close()
            socket.close()
        self._context.term()
        if self._folder is not None:
            self._folder.close()


def _check_reach(address: FrontendAddress, insecure_mesh: bool) -> None:
    if not isinstance(address, TcpAddress):
        return
    if not (address.is_literal or address.host in ("*", "localhost")):
        raise ConfigError(f"cannot listen on {address}: a frontend binds an IP address, localhost or *")
    if not (address.is_loopback or insecure_mesh):
        raise ConfigError(
            f"cannot listen on {address}: others could reach it, and the mesh asks for no key; "
            "bind a loopback address or ipc, or allow it with --insecure-mesh"
        )


def _bindable(endpoint: str) -> str:
    # libzmq takes a name at bind for a network interface.
    return endpoint.replace("tcp://localhost:", "tcp://127.0.0.1:").replace("tcp://*:", "tcp://0.0.0.0:")


def _bind(
    context: sockets.Context, bind: Callable[[sockets.Context, str], sockets.Socket], endpoint: str
) -> sockets.Socket:
    try:
        return bind(context, endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot listen on {endpoint}: {error.strerror}") from None
