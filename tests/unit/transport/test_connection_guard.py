"""Real connections of the loopback: what is tested is what the kernel does."""

import os
import socket
from collections.abc import Iterator

import pytest

from roundhouse.protocol.limits import MAX_BYTES_BEFORE_HELLO
from roundhouse.transport.connection_guard import ConnectionGuard
from roundhouse.transport.socket_reader import Received


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The server's end and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        client.settimeout(5)
        server.settimeout(5)
        yield server, client


def guard_of(*ports: int, most: int = 10) -> ConnectionGuard:
    return ConnectionGuard(ports, lambda: 0.0, most=most)


def test_what_says_no_hello_is_cut_and_counted(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    guard = guard_of(server.getsockname()[1])
    guard.on_accepted(server.fileno())
    sent = 0
    while sent <= MAX_BYTES_BEFORE_HELLO:
        client.sendall(bytes(1024))
        sent += 1024
        server.recv(1024, socket.MSG_WAITALL)
    guard.sample()
    assert client.recv(1) == b""
    assert guard.num_cut == {**dict.fromkeys(guard.num_cut, 0), "bytes_before_hello": 1}
    assert not guard.on_disconnected(server.fileno())
    assert guard.num_without_hello == 1
    # The descriptor is its owner's as before.
    os.fstat(server.fileno())


def test_a_descriptor_that_is_another_ports_by_now_is_left_alone(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    guard = guard_of(1, most=0)
    guard.on_accepted(server.fileno())
    server.sendall(b"alive")
    assert client.recv(5) == b"alive"
    assert guard.num_cut["connections"] == 0


def test_one_too_many_is_cut_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    guard = guard_of(server.getsockname()[1], most=0)
    guard.on_accepted(server.fileno())
    assert client.recv(1) == b""
    assert guard.num_cut["connections"] == 1


def test_what_is_no_connection_is_no_harm(tmp_path: object) -> None:
    guard = guard_of(1, most=0)
    reader, writer = os.pipe()
    for fd in (reader, 10**6):
        guard.on_accepted(fd)
    guard.sample()
    assert sum(guard.num_cut.values()) == 0
    os.close(reader)
    os.close(writer)


def test_a_key_that_is_revoked_loses_its_connection(
    pair: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    server, client = pair
    guard = guard_of(server.getsockname()[1])
    guard.set_allowed({"key/*/engine-1"})
    guard.on_accepted(server.fileno())
    message = Received([b"x"], "key/*/engine-1", server.fileno(), 1)
    assert guard.on_message(message)
    guard.set_allowed({"key/*/engine-0"})
    assert client.recv(1) == b""
    assert not guard.on_message(message)
    assert guard.num_cut == {**dict.fromkeys(guard.num_cut, 0), "revoked": 1}
    assert guard.on_disconnected(server.fileno())
    assert caplog.messages == ["cut a connection from 127.0.0.1 of key/*/engine-1: its key is not allowed"]
