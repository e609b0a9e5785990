"""Each option that `sockets` promises, asked of the socket itself; what libzmq does not tell, by what it does."""

import errno
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from roundhouse.protocol.limits import MAX_BYTES_WAITING_PER_PEER, MAX_MESSAGE_BYTES
from roundhouse.transport import sockets
from roundhouse.transport.keys import Credential, new_pair

EVERY_SOCKET = {
    zmq.LINGER: 0,
    zmq.SNDHWM: 4096,
    zmq.RCVHWM: 0,
    zmq.HEARTBEAT_IVL: 500,
    zmq.HEARTBEAT_TIMEOUT: 1500,
    zmq.HANDSHAKE_IVL: 3000,
    zmq.MAXMSGSIZE: MAX_MESSAGE_BYTES,
}
BOUND = {**EVERY_SOCKET, zmq.BACKLOG: 1024}
CONNECTED = {**EVERY_SOCKET, zmq.RECONNECT_IVL: -1, zmq.CONNECT_TIMEOUT: 2000}


class Remembering(zmq.Context):
    """Holds on to the sockets that were made with it."""

    made: list[sockets.Socket]

    def socket(self, *args: Any, **kwargs: Any) -> sockets.Socket:
        made = super().socket(*args, **kwargs)
        vars(self).setdefault("made", []).append(made)
        return made


@pytest.fixture
def context() -> Iterator[Remembering]:
    context = Remembering()
    yield context
    for socket in context.made:
        socket.close()
    context.term()


MAKERS: dict[str, tuple[Any, int, dict[zmq.SocketOption, Any]]] = {
    "router": (lambda context: sockets.bind_router(context, "inproc://here"), zmq.ROUTER, BOUND),
    "pull": (lambda context: sockets.bind_pull(context, "inproc://here"), zmq.PULL, BOUND),
    "dealer": (
        lambda context: sockets.make_dealer(context, b"engine-0"),
        zmq.DEALER,
        {**CONNECTED, zmq.ROUTING_ID: b"engine-0"},
    ),
    "push": (sockets.make_push, zmq.PUSH, CONNECTED),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_option_is_set(kind: str, context: Remembering) -> None:
    make, zmq_type, options = MAKERS[kind]
    socket = make(context)
    assert socket.type == zmq_type
    assert {option: socket.getsockopt(option) for option in options} == options
    assert socket.copy_threshold == sockets.COPY_BELOW


def test_keys_close_a_socket_for_whoever_zap_does_not_let_in(context: Remembering) -> None:
    server, credential = new_pair(), Credential(1, new_pair().public, new_pair())
    bound = [
        sockets.bind_router(context, "inproc://router", server),
        sockets.bind_pull(context, "inproc://pull", server),
    ]
    options: list[tuple[zmq.SocketOption, Any]] = [
        (zmq.MECHANISM, zmq.CURVE),
        (zmq.CURVE_SERVER, 1),
        (zmq.ZAP_DOMAIN, b"roundhouse"),
        (zmq.ZAP_ENFORCE_DOMAIN, 1),
    ]
    for socket in bound:
        assert [socket.getsockopt(option) for option, _ in options] == [value for _, value in options]
    for socket in (sockets.make_dealer(context, b"engine-0", credential), sockets.make_push(context, credential)):
        options = [(zmq.MECHANISM, zmq.CURVE), (zmq.CURVE_SERVER, 0), (zmq.RECONNECT_IVL, -1)]
        assert [socket.getsockopt(option) for option, _ in options] == [value for _, value in options]


def test_what_waits_for_one_peer_as_copies_is_within_its_limit() -> None:
    assert sockets.SEND_HWM * sockets.COPY_BELOW <= MAX_BYTES_WAITING_PER_PEER


def test_a_router_says_that_a_peer_is_unknown(context: Remembering) -> None:
    router = sockets.bind_router(context, "inproc://router")
    with pytest.raises(zmq.ZMQError) as raised:
        sockets.send_frames(router, [b"nobody", b"a"])
    assert raised.value.errno == errno.EHOSTUNREACH


def test_a_live_routing_id_is_not_handed_over(context: Remembering) -> None:
    router = sockets.bind_router(context, "inproc://router")
    first, second = (sockets.make_dealer(context, b"engine-0") for _ in range(2))
    for dealer in (first, second):
        sockets.connect(dealer, "inproc://router")
        sockets.send_frames(dealer, [b"hello"])
        sockets.has_input(router)
    sockets.send_frames(router, [b"engine-0", b"a"])
    assert (sockets.has_input(first), sockets.has_input(second)) == (True, False)


def test_ipv6_is_on_for_its_literals_only(context: Remembering) -> None:
    endpoints = ["tcp://[::1]:9", "tcp://127.0.0.1:9", "ipc:///nowhere/in.sock"]
    connected = [sockets.make_push(context) for _ in endpoints]
    for push, endpoint in zip(connected, endpoints, strict=True):
        sockets.connect(push, endpoint)
    assert [push.getsockopt(zmq.IPV6) for push in connected] == [1, 0, 0]


@pytest.mark.parametrize("bind", [sockets.bind_router, sockets.bind_pull])
def test_a_bind_that_fails_leaves_no_socket_open(bind: Any, context: Remembering) -> None:
    taken = bind(context, "inproc://taken")
    with pytest.raises(zmq.ZMQError) as raised:
        bind(context, "inproc://taken")
    assert raised.value.errno == errno.EADDRINUSE
    assert [(socket is taken, socket.closed) for socket in context.made] == [(True, False), (False, True)]


def test_small_frames_are_copied_and_large_ones_are_tracked(context: Remembering) -> None:
    pull = sockets.bind_pull(context, "inproc://pull")
    push = sockets.make_push(context)
    with pytest.raises(zmq.Again):
        sockets.send_frames(push, [b"nobody is there"])
    sockets.connect(push, "inproc://pull")
    small, large = bytes(sockets.COPY_BELOW - 1), bytes(sockets.COPY_BELOW)
    assert sockets.send_frames(push, [small, small]) is None
    tracker = sockets.send_frames(push, [large, small])
    assert tracker is not None
    assert not tracker.done
    assert [pull.recv_multipart(zmq.NOBLOCK) for _ in range(2)] == [[small, small], [large, small]]


def test_a_monitor_is_written_to_until_it_is_stopped(context: Remembering) -> None:
    push = sockets.make_push(context)
    pair = sockets.monitor(push, zmq.EVENT_MONITOR_STOPPED)
    assert {option: pair.getsockopt(option) for option in (zmq.LINGER, zmq.RCVHWM)} == {zmq.LINGER: 0, zmq.RCVHWM: 0}
    assert sockets.read_monitor(pair) == []
    sockets.stop_monitor(push)
    assert sockets.read_monitor(pair) == [zmq.Event.MONITOR_STOPPED]
