"""Large frames alone: one PUSH in another process to one PULL over loopback tcp, by the mesh's own sockets, with keys
or without. `python -m tests.bench.large_frames ADDRESS COUNT NUM_BYTES [KEYS]` is that other process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import zmq

from roundhouse.cli.key_store import KeyStore
from roundhouse.clock import monotonic
from roundhouse.transport import sockets
from roundhouse.transport.key_folder import read_key_files
from roundhouse.transport.keys import parse_engine_keys
from roundhouse.transport.zap import ZapHandler
from tests.bench.errors import BenchError
from tests.support.free_ports import free_tcp_port

TIMEOUT_MS = 30_000
NUM_PENDING = 8
"""Messages that were sent and not yet read by ZeroMQ: enough to keep it busy, and little memory."""

IDENTITY = "e-0"
TYPE = b"\x00"


def mb_per_s(num_bytes: int, count: int, *, with_keys: bool) -> float:
    """Of `count` messages of a type byte and `num_bytes`, from the first one's arrival to the last one's. Raises
    `BenchError` when they do not come."""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        store = KeyStore(Path(folder) / "keys")
        store.create([IDENTITY])
        keys = store.read()
        zap = ZapHandler(context, keys.grants, monotonic) if with_keys else None
        address = f"tcp://127.0.0.1:{free_tcp_port()}"
        pull = sockets.bind_pull(context, address, keys.servers[1] if with_keys else None)
        arguments = [address, str(count), str(num_bytes), *([str(store.engine(IDENTITY))] if with_keys else [])]
        process = subprocess.Popen([sys.executable, "-m", "tests.bench.large_frames", *arguments])
        try:
            return _received(pull, num_bytes, count)
        finally:
            process.kill()
            process.wait()
            pull.close()
            if zap is not None:
                zap.close()


def _received(pull: sockets.Socket, num_bytes: int, count: int) -> float:
    pull.rcvtimeo = TIMEOUT_MS
    try:
        pull.recv_multipart(copy=False)
        started = time.perf_counter()
        for _ in range(count - 1):
            _, payload = pull.recv_multipart(copy=False)
            assert len(payload) == num_bytes
    except zmq.Again:
        raise BenchError("the other process of the wire sent nothing") from None
    return (count - 1) * num_bytes / 1e6 / (time.perf_counter() - started)


def _send(address: str, count: int, num_bytes: int, keys: Path | None) -> None:
    """The one buffer is never changed, so that it may wait in any number of messages."""
    payload, pending = bytearray(num_bytes), deque[zmq.MessageTracker]()
    credential = None if keys is None else parse_engine_keys(read_key_files(keys)).credentials()[0]
    with zmq.Context() as context:
        push = sockets.make_push(context, credential)
        push.linger = TIMEOUT_MS
        sockets.connect(push, address)
        for _ in range(count):
            if not push.poll(TIMEOUT_MS, zmq.POLLOUT):
                sys.exit("nobody takes anything")
            tracker = sockets.send_frames(push, [TYPE, payload])
            if tracker is not None:
                pending.append(tracker)
            if len(pending) > NUM_PENDING:
                pending.popleft().wait(TIMEOUT_MS / 1e3)
        push.close()


if __name__ == "__main__":
    _send(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]) if len(sys.argv) > 4 else None)
