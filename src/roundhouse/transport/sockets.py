"""The mesh's ZeroMQ sockets: every option with its reason. Nothing else makes a socket.

Measured with libzmq 4.3.5; `docs/adr/0001-link-sessions.md` tells what each trap did before it was closed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import count

import zmq
from zmq.utils.monitor import parse_monitor_message

from roundhouse.protocol.frames import size_of
from roundhouse.protocol.limits import MAX_MESSAGE_BYTES
from roundhouse.protocol.serial import Buffer
from roundhouse.transport.keys import Credential, KeyPair

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

LAST_WORDS_LINGER_MS = 4000

COPY_BELOW = 64 * 1024
"""Bytes of a frame. Smaller ones are copied into ZMQ's own memory: sending without a copy costs 20 µs of bookkeeping,
as much as copying about 100 KiB."""

SEND_HWM = 4096
"""Messages that wait for one peer. With `COPY_BELOW` it bounds the copied bytes to 256 MiB
(`limits.MAX_BYTES_WAITING_PER_PEER`), and it is four seconds of an engine that makes a thousand steps a second."""

_EVERY_SOCKET = {
    # A closed socket drops what it holds: its session is over, and the next one would be handed stale messages.
    zmq.LINGER: 0,
    zmq.SNDHWM: SEND_HWM,
    # No limit. Heartbeats and a receive limit do not go together: a peer that disconnects while libzmq waits for room
    # aborts this whole process ("Assertion failed: !_io_error", https://github.com/zeromq/libzmq/issues/4767, still in
    # 4.3.5). What waits is bounded by whoever drains the socket, and by the peer's silence rule while nobody does.
    zmq.RCVHWM: 0,
    # Finds a frozen or cut-off peer in 1.5 to 1.8 s; TCP alone takes minutes, and ipc has nothing of the kind.
    zmq.HEARTBEAT_IVL: 500,
    zmq.HEARTBEAT_TIMEOUT: 1500,
    # A peer that connects and then says nothing leaves its slot.
    zmq.HANDSHAKE_IVL: 3000,
    # The last fence, after our own checks: it counts one frame, not the message, and costs the peer its connection.
    zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
}

_BOUND = {
    # Every engine of a fleet may connect in the same second after a restart; the default is 100.
    zmq.BACKLOG: 1024,
}

_CONNECTED = {
    # libzmq never reconnects: a silent reconnect loses messages both ways, and a PUSH gives all that it holds to the
    # restarted peer. A session ends with its connection; the next one is made by us.
    zmq.RECONNECT_IVL: -1,
    # A SYN that nobody answers; the default is the kernel's two minutes.
    zmq.CONNECT_TIMEOUT: 2000,
}

_ROUTER = {
    # A send to a peer that is gone raises EHOSTUNREACH; without this it vanishes.
    zmq.ROUTER_MANDATORY: 1,
    # The default, said aloud: with handover a second peer that claims a live routing id takes its place at the
    # handshake, before any check of ours, and gets the next prompt.
    zmq.ROUTER_HANDOVER: 0,
}

ZAP_DOMAIN = b"roundhouse"

_monitor_numbers = count()

MonitorFrames = Sequence[bytes | memoryview]

Options = Mapping[zmq.SocketOption, int | bytes]


def bind_router(context: Context, endpoint: str, server: KeyPair | None = None) -> Socket:
    """server: only peers with a key that the context's ZAP handler allows come in, and all is encrypted.
    Raises `zmq.ZMQError`; then the socket is closed."""
    return _bind(context, zmq.ROUTER, endpoint, {**_EVERY_SOCKET, **_BOUND, **_ROUTER, **_server_options(server)})


def bind_pull(context: Context, endpoint: str, server: KeyPair | None = None) -> Socket:
    """As `bind_router`."""
    return _bind(context, zmq.PULL, endpoint, {**_EVERY_SOCKET, **_BOUND, **_server_options(server)})


def make_dealer(context: Context, routing_id: bytes, credential: Credential | None = None) -> Socket:
    """Not connected yet, so that a monitor misses nothing. `routing_id` is how the frontend's ROUTER addresses it.
    credential: the server has to have that key, and all is encrypted."""
    options = {**_EVERY_SOCKET, **_CONNECTED, **_client_options(credential), zmq.ROUTING_ID: routing_id}
    return _make(context, zmq.DEALER, options)


def make_push(context: Context, credential: Credential | None = None) -> Socket:
    """Not connected yet."""
    return _make(context, zmq.PUSH, {**_EVERY_SOCKET, **_CONNECTED, **_client_options(credential)})


def connect(socket: Socket, endpoint: str) -> None:
    if _is_ipv6(endpoint):
        socket.setsockopt(zmq.IPV6, 1)
    socket.connect(endpoint)


def monitor(socket: Socket, events: int) -> Socket:
    """A PAIR that gets `events` of `socket`; it has to outlive the monitoring, which `stop_monitor` ends.

    Measured: an I/O thread that has an event for a PAIR which is closed or full waits for ever, and with it every
    socket of the context. Hence the order above, and no limit on what waits in the PAIR.
    """
    endpoint = f"inproc://monitor-{next(_monitor_numbers)}"
    socket.monitor(endpoint, events)
    pair = socket.context.socket(zmq.PAIR)
    pair.setsockopt(zmq.LINGER, 0)
    pair.setsockopt(zmq.RCVHWM, 0)
    pair.connect(endpoint)
    return pair


def stop_monitor(socket: Socket) -> None:
    """No event is written after this. For the thread that owns `socket`."""
    socket.monitor(None, 0)


def read_monitor(pair: Socket) -> list[zmq.Event]:
    """All events that wait."""
    events: list[zmq.Event] = []
    while True:
        try:
            frames = pair.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return events
        events.append(zmq.Event(parse_monitor_message(frames)["event"]))


def monitor_event(frames: MonitorFrames) -> tuple[int, int]:
    """Number and value of a monitor's message: two bytes and four, in the machine's own order. The value of ACCEPTED
    and DISCONNECTED is the connection's file descriptor."""
    return int.from_bytes(frames[0][:2], sys.byteorder), int.from_bytes(frames[0][2:6], sys.byteorder)


def send_frames(socket: Socket, frames: Sequence[Buffer]) -> zmq.MessageTracker | None:
    """One message, at once or not at all. Returns the tracker of the frames that ZMQ reads where they are: none of them
    may change before it is done. None when all were copied.

    Each frame goes by its own send: `send_multipart` returns the tracker of the last frame alone, and for a frame that
    was copied it says done. Raises `zmq.Again` when the peer has no room, and what else ZMQ finds.
    """
    trackers: list[zmq.MessageTracker] = []
    last = len(frames) - 1
    for place, frame in enumerate(frames):
        flags = zmq.NOBLOCK if place == last else zmq.NOBLOCK | zmq.SNDMORE
        if size_of([frame]) < COPY_BELOW:
            socket.send(frame, flags)
        else:
            tracker = socket.send(frame, flags, copy=False, track=True)
            assert tracker is not None
            trackers.append(tracker)
    return zmq.MessageTracker(*trackers) if trackers else None


def has_input(socket: Socket) -> bool:
    """Also makes the socket take note of connections that came or went; a send does so only now and then."""
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return bool(events & zmq.POLLIN)


def descriptor(socket: Socket) -> int:
    """Readable when something happened to the socket; edge-triggered."""
    fd = socket.getsockopt(zmq.FD)
    assert isinstance(fd, int)
    return fd


def _server_options(server: KeyPair | None) -> Options:
    if server is None:
        return {}
    return {
        zmq.CURVE_SERVER: 1,
        zmq.CURVE_SECRETKEY: server.secret.encode(),
        zmq.ZAP_DOMAIN: ZAP_DOMAIN,
        # Without it CURVE fails open: when no ZAP handler answers, whoever knows the server's public key comes in.
        zmq.ZAP_ENFORCE_DOMAIN: 1,
    }


def _client_options(credential: Credential | None) -> Options:
    if credential is None:
        return {}
    return {
        zmq.CURVE_SERVERKEY: credential.server_public.encode(),
        zmq.CURVE_PUBLICKEY: credential.client.public.encode(),
        zmq.CURVE_SECRETKEY: credential.client.secret.encode(),
    }


def _bind(context: Context, kind: int, endpoint: str, options: Options) -> Socket:
    socket = _make(context, kind, options)
    try:
        if _is_ipv6(endpoint):
            socket.setsockopt(zmq.IPV6, 1)
        socket.bind(endpoint)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def _make(context: Context, kind: int, options: Options) -> Socket:
    socket = context.socket(kind)
    socket.copy_threshold = COPY_BELOW
    for option, value in options.items():
        socket.setsockopt(option, value)
    return socket


def _is_ipv6(endpoint: str) -> bool:
    # Only for a literal: with the option on, a v4 address would be reported and bound as a mapped v6 one.
    return endpoint.startswith("tcp://[")
