"""The mesh alone: msgpack both ways, and ZeroMQ over ipc to another process.

`python -m tests.bench.wire echo ADDRESS` and `… flood ADDRESS COUNT` are that other process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from roundhouse.protocol.frames import ENGINE_TYPES, FRONTEND_TYPES, FrameDecoder, FrameEncoder
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SchedulerStats
from tests.bench.errors import BenchError
from tests.support import builders

NUM_REQUESTS = 64
TIMEOUT_MS = 30_000
STOP = b"stop"


def outputs_of_a_step() -> EngineCoreOutputs:
    """What a step brings for one frontend with 64 running requests: a token each."""
    outputs = [EngineCoreOutput(f"cmpl-{index:032x}", 0, 100, [1000 + index]) for index in range(NUM_REQUESTS)]
    stats = SchedulerStats(NUM_REQUESTS, 0, 0.25, 1000, NUM_REQUESTS, 8192, 0, 0, 8192, 6400)
    return EngineCoreOutputs(1, 0, (0, 1_700_000_000_000), 1000, outputs, stats, 1234.5)


def add() -> EngineCoreRequest:
    return builders.engine_core_request(f"cmpl-{0:032x}", range(1000, 1128), max_tokens=64)


def encode_us(message: Any, *, repeats: int = 2000) -> float:
    """Microseconds a message, the best of ten rounds; into a reused buffer, as the output thread does."""
    encoder, buffer = FrameEncoder({**FRONTEND_TYPES, **ENGINE_TYPES}), bytearray()
    return _best(lambda: encoder.encode_into(message, buffer), repeats) * 1e6


def decode_us(message: Any, *, repeats: int = 2000) -> float:
    """As `encode_us`."""
    types = {type(message): {**FRONTEND_TYPES, **ENGINE_TYPES}[type(message)]}
    frames = [bytes(frame) for frame in FrameEncoder(types).encode(message)]
    decoder = FrameDecoder(types)
    return _best(lambda: decoder.decode(frames), repeats) * 1e6


def _best(call: Any, repeats: int) -> float:
    rounds: list[float] = []
    for _ in range(10):
        started = time.perf_counter()
        for _ in range(repeats // 10):
            call()
        rounds.append((time.perf_counter() - started) / (repeats // 10))
    return min(rounds)


def round_trip_us(*, repeats: int = 3000) -> float:
    """Microseconds from ROUTER to a DEALER in another process and back, the median: an ADD's bytes each way."""
    frames = [bytes(frame) for frame in FrameEncoder(FRONTEND_TYPES).encode(add())]
    seconds: list[float] = []
    with _peer(zmq.ROUTER, "echo") as socket:
        identity, *_ = socket.recv_multipart()
        for _ in range(repeats):
            started = time.perf_counter()
            socket.send_multipart([identity, *frames])
            socket.recv_multipart()
            seconds.append(time.perf_counter() - started)
        socket.send_multipart([identity, STOP])
    return statistics.median(seconds) * 1e6


def messages_per_s(*, count: int = 20_000) -> float:
    """A free-running PUSH in another process, which encodes each message, to a PULL that decodes it."""
    decoder = FrameDecoder(ENGINE_TYPES)
    with _peer(zmq.PULL, "flood", str(count)) as socket:
        decoder.decode(socket.recv_multipart())
        started = time.perf_counter()
        for _ in range(count - 1):
            decoder.decode(socket.recv_multipart())
        return (count - 1) / (time.perf_counter() - started)


@contextmanager
def _peer(kind: int, *arguments: str) -> Iterator[zmq.Socket[bytes]]:
    """A bound socket and the other process, which connects to it."""
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        socket.rcvtimeo = socket.sndtimeo = TIMEOUT_MS
        address = f"ipc://{Path(folder) / 'wire'}"
        socket.bind(address)
        action, *rest = arguments
        process = subprocess.Popen([sys.executable, "-m", "tests.bench.wire", action, address, *rest])
        try:
            yield socket
        except zmq.Again:
            raise BenchError("the other process of the wire sent nothing") from None
        finally:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _echo(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.rcvtimeo = TIMEOUT_MS  # whoever asked may have been killed
        socket.linger = 0
        socket.connect(address)
        socket.send(b"")
        while (frames := socket.recv_multipart()) != [STOP]:
            socket.send_multipart(frames)


def _flood(address: str, count: int) -> None:
    encoder, message = FrameEncoder(ENGINE_TYPES), outputs_of_a_step()
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.sndtimeo = socket.linger = TIMEOUT_MS
        socket.connect(address)
        for _ in range(count):
            socket.send_multipart(encoder.encode(message))


if __name__ == "__main__":
    if sys.argv[1] == "echo":
        _echo(sys.argv[2])
    else:
        _flood(sys.argv[2], int(sys.argv[3]))
