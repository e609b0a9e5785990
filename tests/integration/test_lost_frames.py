"""What the chaos run's proxy may do to a closed mesh: a sealed frame that is lost ends no connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from roundhouse.clock import monotonic
from roundhouse.protocol.identity import EngineIdentity
from roundhouse.transport import sockets
from roundhouse.transport.address import TcpAddress
from roundhouse.transport.keys import Credential, Grant, new_pair
from roundhouse.transport.zap import ZapHandler
from tests.support.free_ports import free_port_run
from tests.support.zmtp_proxy import NUM_PORTS, ZmtpProxy

ARRIVES_MS = 10_000
QUIET_MS = 500


@pytest.fixture
def context() -> Iterator[sockets.Context]:
    context: sockets.Context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.mark.parametrize("generation", [1, 2])
def test_a_lost_sealed_frame_ends_no_connection(context: sockets.Context, generation: int) -> None:
    server, client = new_pair(), new_pair()
    zap = ZapHandler(context, {client.public: Grant(EngineIdentity("e-0"), client.public)}, monotonic)
    there = TcpAddress("127.0.0.1", free_port_run("127.0.0.1", NUM_PORTS))
    pull = sockets.bind_pull(context, there.of_generation(generation).output_endpoint, server)
    monitor = sockets.monitor(pull, zmq.EVENT_ALL)
    with ZmtpProxy(str(there)) as proxy:
        here = TcpAddress("127.0.0.1", int(proxy.address.rpartition(":")[2])).of_generation(generation)
        push = sockets.make_push(context, Credential(generation, server.public, client))
        sockets.connect(push, here.output_endpoint)
        push.send_multipart([b"T", b"one"])
        assert pull.poll(ARRIVES_MS)
        assert pull.recv_multipart() == [b"T", b"one"]
        proxy.to_frontend.drop(3)
        for text in (b"two", b"three", b"four"):
            push.send_multipart([b"T", text])
        assert pull.poll(ARRIVES_MS)
        assert pull.recv_multipart() == [b"three"]
        assert pull.recv_multipart() == [b"T", b"four"]
        assert not pull.poll(QUIET_MS)
        assert sockets.read_monitor(monitor) == [zmq.EVENT_ACCEPTED, zmq.EVENT_HANDSHAKE_SUCCEEDED]
        push.close()
    sockets.stop_monitor(pull)
    monitor.close()
    pull.close()
    zap.close()
