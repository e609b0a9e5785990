"""`FrontendLink`: a frontend's side of the mesh, in an asyncio event loop: a `PortPair` for each server key, or the one
without keys, and the ZAP handler that they ask."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

import zmq

from roundhouse.clock import Clock, monotonic
from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.frames import size_of
from roundhouse.protocol.identity import Peer
from roundhouse.protocol.limits import MAX_BYTES_WAITING_PER_PEER
from roundhouse.protocol.serial import Buffer
from roundhouse.transport import sockets
from roundhouse.transport.address import FrontendAddress, IpcAddress, TcpAddress, parse_address
from roundhouse.transport.connection_guard import ConnectionGuard
from roundhouse.transport.ipc_folder import IpcFolder, fresh_folder
from roundhouse.transport.keys import FrontendKeys, KeyPair
from roundhouse.transport.port_pair import Callbacks, PortPair
from roundhouse.transport.reach import check_bind, is_exposed
from roundhouse.transport.socket_reader import Frames
from roundhouse.transport.zap import ZapHandler

logger = logging.getLogger(__name__)

LONGEST_DRAIN = 4096
LONGEST_DRAIN_S = 0.01
"""Messages of one socket, and seconds for all, that are read in one go before deadlines are judged."""


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
    keys: on tcp only peers with one of these come in, and all is encrypted; ipc needs none.
    Raises `ConfigError` when the address cannot be bound; then nothing is left behind.
    """

    def __init__(
        self,
        address: str,
        *,
        insecure_mesh: bool = False,
        keys: FrontendKeys | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self.address: FrontendAddress = parse_address(address)
        check_bind(self.address, has_keys=keys is not None, insecure_mesh=insecure_mesh)
        self.is_insecure = is_exposed(self.address) and keys is None
        self._folder = IpcFolder(self.address) if isinstance(self.address, IpcAddress) else None
        self._guard: ConnectionGuard | None = None
        if isinstance(self.address, TcpAddress):
            self._guard = ConnectionGuard(_ports(self.address, has_keys=keys is not None), clock)
        self._clock = clock
        self._context = zmq.Context()
        self._pairs: dict[int, PortPair] = {}
        self._zap: ZapHandler | None = None
        self._callbacks: Callbacks | None = None
        self._pending: deque[_Pending] = deque()
        self._is_closed = False
        self._wanted: Mapping[int, KeyPair] = {} if keys is None else keys.servers
        self._bind_failure: str | None = None
        self._num_failed_before = 0
        try:
            if keys is not None and isinstance(self.address, TcpAddress):
                # Before any bind: nobody may find a socket that asks nobody.
                self._zap = ZapHandler(self._context, keys.grants, clock)
                self._allow_connections(keys)
                for generation, server in keys.servers.items():
                    self._pairs[generation] = PortPair(self._context, self.address, generation, server, self._guard)
            else:
                self._pairs[0] = PortPair(self._context, self.address, 0, None, self._guard)
        except ConfigError:
            self._close_sockets()
            raise

    @property
    def has_keys(self) -> bool:
        return self._zap is not None

    @property
    def generations(self) -> list[int]:
        """Of the server keys that engines can connect by; [0] without keys."""
        return sorted(self._pairs)

    @property
    def num_refused_keys(self) -> int:
        return 0 if self._zap is None else self._zap.num_refused

    @property
    def num_zap_restarts(self) -> int:
        return 0 if self._zap is None else self._zap.num_restarts

    @property
    def num_failed_handshakes(self) -> int:
        """Peers without keys, with another server's key, or that are no peers at all."""
        return self._num_failed_before + sum(pair.num_failed_handshakes for pair in self._pairs.values())

    @property
    def num_cut(self) -> dict[str, int]:
        """Connections that were ended because they were too much, by limit; none on ipc."""
        return {} if self._guard is None else {**self._guard.num_cut}

    @property
    def num_without_hello(self) -> int:
        """Tcp connections that ended, and no message had come by them."""
        return 0 if self._guard is None else self._guard.num_without_hello

    @property
    def input_socket(self) -> sockets.Socket:
        """The ROUTER of the newest generation."""
        return self._pairs[max(self._pairs)].router

    @property
    def output_socket(self) -> sockets.Socket:
        """The PULL of the newest generation."""
        return self._pairs[max(self._pairs)].pull

    def start(
        self,
        *,
        on_input: Callable[[Frames, Peer], None],
        on_output: Callable[[Frames, Peer], None],
        on_disconnected: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        """As in `Callbacks`."""
        self._callbacks = Callbacks(on_input, on_output, on_disconnected, on_failure)
        for pair in self._pairs.values():
            pair.start(self._callbacks)
        if self._guard is not None:
            self._guard.start(asyncio.get_running_loop())

    def set_keys(self, keys: FrontendKeys) -> None:
        """Connections of client keys that are not in `keys` are cut. What came by a server key that is gone from it, or
        is another one there, ends with its ports: the next send to it says that it is gone. A port that cannot be
        bound is logged and tried again by `watch`; after ports were closed all are left to it, since libzmq gives them
        back a little later. Without keys before, nothing happens."""
        if self._zap is None or self._is_closed:
            return
        # In this order: who comes in by the old list is cut with its first message.
        self._zap.allow(keys.grants)
        self._allow_connections(keys)
        gone = [number for number, pair in self._pairs.items() if keys.servers.get(number) != pair.server]
        for generation in gone:
            pair = self._pairs.pop(generation)
            self._num_failed_before += pair.num_failed_handshakes
            pair.close()
            logger.info("the server key of generation %d is gone, and its ports are closed", generation)
        self._wanted = keys.servers
        if not gone:
            self._bind_wanted()

    def watch(self) -> None:
        """To be called every second or so: mends what failed."""
        if self._zap is not None and not self._is_closed:
            self._zap.watch()
            self._bind_wanted()

    def send(self, routing_id: bytes, frames: list[Buffer], *, generation: int = 0) -> SendResult:
        """Never waits. `frames` and what they are views of must not change afterwards."""
        pair = self._pairs.get(generation)
        if pair is None:
            return SendResult.GONE
        self._reclaim()
        if self._has_too_much_pending(routing_id):
            return SendResult.FULL
        try:
            tracker = sockets.send_frames(pair.router, [routing_id, *frames])
            if tracker is not None:
                self._pending.append(_Pending(tracker, routing_id, frames))
        except zmq.Again:
            return SendResult.FULL
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return SendResult.GONE
        finally:
            pair.look_again()
        return SendResult.SENT

    def _allow_connections(self, keys: FrontendKeys) -> None:
        assert self._guard is not None
        self._guard.set_allowed({grant.user_id for grant in keys.grants.values()})

    def _bind_wanted(self) -> None:
        assert isinstance(self.address, TcpAddress)
        for generation, server in self._wanted.items():
            if generation in self._pairs:
                continue
            try:
                pair = PortPair(self._context, self.address, generation, server, self._guard)
            except ConfigError as error:
                if self._bind_failure != error.message:
                    self._bind_failure = error.message
                    logger.error("the server key of generation %d is not in use yet: %s", generation, error.message)
                continue
            self._bind_failure = None
            self._pairs[generation] = pair
            logger.info("engines can connect by the server key of generation %d", generation)
            if self._callbacks is not None:
                pair.start(self._callbacks)

    def _reclaim(self) -> None:
        while self._pending and self._pending[0].tracker.done:
            self._pending.popleft()

    def _has_too_much_pending(self, routing_id: bytes) -> bool:
        waiting = sum(size_of(pending.frames) for pending in self._pending if pending.routing_id == routing_id)
        return waiting > MAX_BYTES_WAITING_PER_PEER

    def notice_departures(self) -> None:
        """Makes the next sends see every connection that has ended by now: libzmq looks at most once a millisecond."""
        for pair in self._pairs.values():
            sockets.has_input(pair.router)

    def drain(self) -> bool:
        """Reads what has come, so that deadlines can be judged. False when there was too much for one go."""
        until = self._clock() + LONGEST_DRAIN_S
        are_empty = [pair.drain(LONGEST_DRAIN, until) for pair in list(self._pairs.values())]
        return all(are_empty)

    def close(self) -> None:
        """Idempotent. What was not sent yet is dropped."""
        if not self._is_closed:
            self._is_closed = True
            self._close_sockets()

    def _close_sockets(self) -> None:
        if self._guard is not None:
            self._guard.stop()
        for pair in self._pairs.values():
            pair.close()
        if self._zap is not None:
            self._zap.close()
        self._context.term()
        if self._folder is not None:
            self._folder.close()


def _ports(address: TcpAddress, *, has_keys: bool) -> set[int]:
    """Those of both generations; without keys the two above the mesh's may be somebody else's."""
    return set(range(address.port, address.port + (4 if has_keys else 2)))
