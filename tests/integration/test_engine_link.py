"""An engine's socket threads against a frontend that is played by hand, frame by frame."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from roundhouse.protocol.frames import ENGINE_TYPES, FRONTEND_TYPES, FrameDecoder, FrameEncoder
from roundhouse.protocol.identity import ClientIndex, parse_routing_id
from roundhouse.protocol.messages import (
    AbortRequests,
    Admitted,
    Died,
    Draining,
    EngineCoreOutput,
    EngineCoreOutputs,
    Hello,
    OutputError,
    Ping,
    Pong,
    Refused,
    SchedulerStats,
    UtilityOutput,
)
from roundhouse.protocol.sampling import FinishReason
from roundhouse.protocol.session import SILENCE_S
from roundhouse.transport import sockets
from roundhouse.transport.engine_link import EngineLink
from roundhouse.transport.items import (
    Backlog,
    BusyLoopStatus,
    Drain,
    InputItem,
    OutputItem,
    Outputs,
    Received,
    SessionLost,
    SessionOpened,
)

WAIT_S = 10.0
HELLO = Hello("engine-0", (7, 8), b"", [1], "echo", "key", 16, 100, 2048, 64, 2**26)


class PlayedFrontend:
    """ROUTER and PULL, read and written by the test."""

    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder}"
        self.context = zmq.Context()
        self.router = sockets.bind_router(self.context, f"ipc://{folder}/in.sock")
        self.pull = sockets.bind_pull(self.context, f"ipc://{folder}/out.sock")
        self._encoder = FrameEncoder(FRONTEND_TYPES)
        self._decoder = FrameDecoder(ENGINE_TYPES)
        self.routing_id = b""

    def routed(self) -> list[bytes]:
        assert self.router.poll(WAIT_S * 1000)
        return self.router.recv_multipart()

    def pulled(self) -> Any:
        assert self.pull.poll(WAIT_S * 1000)
        return self._decoder.decode(self.pull.recv_multipart())

    def is_quiet(self) -> bool:
        return not self.pull.poll(300)

    def send(self, message: Any) -> None:
        self.router.send_multipart([self.routing_id, *self._encoder.encode(message)])

    def greet(self) -> Hello:
        """The two Hellos of an engine that connects."""
        self.routing_id, empty = self.routed()
        assert empty == b""
        again, *frames = self.routed()
        assert again == self.routing_id
        hello = self._decoder.decode(frames)
        assert self.pulled() == hello
        assert parse_routing_id(self.routing_id) == (hello.identity, hello.nonce)
        return hello

    def admit(self, session_id: int = 5, max_message_bytes: int = 2**26) -> Hello:
        hello = self.greet()
        self.send(Admitted("frontend-1", session_id, 3, 1, max_message_bytes))
        return hello

    def close(self) -> None:
        self.context.destroy(linger=0)


class PlayedEngine:
    def __init__(self, *addresses: str, **options: Any) -> None:
        self.inputs: queue.SimpleQueue[InputItem] = queue.SimpleQueue()
        self.outputs: queue.SimpleQueue[OutputItem] = queue.SimpleQueue()
        self.status = BusyLoopStatus()
        self.backlog = Backlog()
        options = {"backlog": self.backlog, **options}
        self.link = EngineLink(HELLO, addresses, self.inputs, self.outputs, self.status, **options)
        self.link.start()

    def next(self) -> InputItem:
        return self.inputs.get(timeout=WAIT_S)

    def put(self, *outputs: EngineCoreOutput, client: int = 1, **fields: Any) -> None:
        self.outputs.put(Outputs(ClientIndex(client), EngineCoreOutputs(outputs=list(outputs), **fields)))


@pytest.fixture
def frontend(tmp_path: Path) -> Iterator[PlayedFrontend]:
    frontend = PlayedFrontend(tmp_path)
    yield frontend
    frontend.close()


@pytest.fixture
def engine(frontend: PlayedFrontend) -> Iterator[PlayedEngine]:
    engine = PlayedEngine(frontend.address)
    yield engine
    engine.link.close()


def test_the_first_frames_of_a_session(frontend: PlayedFrontend, engine: PlayedEngine) -> None:
    hello = frontend.admit()
    assert (hello.identity, hello.epoch, len(hello.nonce)) == ("engine-0", (7, 8), 16)
    assert engine.next() == SessionOpened(ClientIndex(1))


def test_a_ping_is_answered_with_counts_and_load(frontend: PlayedFrontend, engine: PlayedEngine) -> None:
    frontend.admit()
    engine.next()
    frontend.send(Ping("frontend-1", 1, 10))
    assert frontend.pulled() == Pong(5, 10, 1, 0, SchedulerStats(), 0.0)
    frontend.send(AbortRequests(["a"]))
    assert engine.next() == Received(ClientIndex(1), AbortRequests(["a"]), 5)
    engine.status.load = SchedulerStats(num_running_reqs=4)
    engine.status.step_started = time.monotonic() - 100
    engine.put()
    assert frontend.pulled() == EngineCoreOutputs(5, 3, (7, 8), 1)
    frontend.send(Ping("frontend-1", 2, 11))
    pong = frontend.pulled()
    assert (pong.ping_number, pong.last_control_number, pong.last_output_number) == (11, 2, 1)
    assert pong.load.num_running_reqs == 4
    assert 100 < pong.step_s < 100 + WAIT_S


def test_a_ping_that_counts_otherwise_ends_the_session_and_a_new_one_begins(
    frontend: PlayedFrontend, engine: PlayedEngine
) -> None:
    first = frontend.admit()
    engine.next()
    frontend.send(Ping("frontend-1", 2, 10))
    assert engine.next() == SessionLost(ClientIndex(1))
    second = frontend.admit(session_id=6)
    assert second.nonce != first.nonce
    assert engine.next() == SessionOpened(ClientIndex(2))
    engine.put(client=1)
    engine.put(client=2)
    assert frontend.pulled() == EngineCoreOutputs(6, 3, (7, 8), 1)


def test_a_refused_engine_comes_back_later(frontend: PlayedFrontend, engine: PlayedEngine) -> None:
    frontend.greet()
    refused_at = time.monotonic()
    frontend.send(Refused("model", "this frontend serves another"))
    frontend.admit()
    assert time.monotonic() - refused_at > 0.4
    assert engine.next() == SessionOpened(ClientIndex(2))


def test_malformed_frames_are_dropped_and_counted_as_control_frames(
    frontend: PlayedFrontend, engine: PlayedEngine
) -> None:
    frontend.admit()
    engine.next()
    garbage = [
        [b""],
        [b"\x00"],
        [b"\x00", b"\xc1"],
        [b"\x7f", b"x"],
        [b"\x05", b"\x90"],
        [b"x"] * 100,
        [b"\x06", b"y" * 99],
    ]
    for frames in garbage:
        frontend.router.send_multipart([frontend.routing_id, *frames])
    frontend.router.send_multipart([frontend.routing_id, b"\x04", b"\xc1"])
    frontend.send(AbortRequests(["a"]))
    assert engine.next() == Received(ClientIndex(1), AbortRequests(["a"]), 5)
    frontend.send(Ping("frontend-1", 2 + len(garbage), 1))
    assert frontend.pulled().last_control_number == 2 + len(garbage)


def test_buffers_that_are_reused_are_never_touched_while_they_are_sent(
    frontend: PlayedFrontend, engine: PlayedEngine
) -> None:
    frontend.admit()
    engine.next()
    for number in range(200):
        text = f"{number:03d}" * 40_000  # 120 kB in the payload itself
        array = np.full(50_000, number, dtype=np.int32)
        engine.put(EngineCoreOutput(text, 0, number, [], pooling_output=array))
    time.sleep(0.3)  # all of them wait in ZMQ by now
    for number in range(200):
        (output,) = frontend.pulled().outputs
        assert output.request_id == f"{number:03d}" * 40_000
        assert output.pooling_output.tolist() == [number] * 50_000


def test_an_output_that_is_too_large_ends_its_request_alone(frontend: PlayedFrontend, engine: PlayedEngine) -> None:
    frontend.admit(max_message_bytes=2000)
    engine.next()
    stats = SchedulerStats(num_running_reqs=9)
    engine.put(
        EngineCoreOutput("small", 0, 0, [1]),
        EngineCoreOutput("large", 0, 4, list(range(1000))),
        EngineCoreOutput("unspeakable", 0, 4, [2**70]),
        scheduler_stats=stats,
    )
    messages = [frontend.pulled() for _ in range(4)]
    assert [message.sequence_number for message in messages] == [1, 2, 3, 4]
    assert (messages[0].scheduler_stats, messages[0].outputs) == (stats, [])
    assert messages[1].outputs == [EngineCoreOutput("small", 0, 0, [1])]
    large, unspeakable = messages[2].outputs[0], messages[3].outputs[0]
    assert (large.request_id, large.finish_reason, large.error.code) == (
        "large",
        FinishReason.ERROR,
        "message_too_large",
    )
    assert unspeakable.error == OutputError("internal_error", unspeakable.error.message)
    assert engine.next() == Received(ClientIndex(1), AbortRequests(["large"]))
    assert engine.next() == Received(ClientIndex(1), AbortRequests(["unspeakable"]))


def test_a_utility_result_that_cannot_be_sent_is_a_failure(frontend: PlayedFrontend, engine: PlayedEngine) -> None:
    frontend.admit()
    engine.next()
    engine.put(utility_output=UtilityOutput(1, result=object()))
    assert frontend.pulled().utility_output == UtilityOutput(1, None, "a object has no place on the wire")


def test_every_frontend_is_told_of_a_drain_and_later_ones_too(frontend: PlayedFrontend, engine: PlayedEngine) -> None:
    frontend.admit()
    engine.next()
    engine.outputs.put(Drain("shutdown", 30.0))
    assert frontend.pulled() == Draining(5, "shutdown", 30.0)
    frontend.send(Refused("session_over", "replaced"))
    assert engine.next() == SessionLost(ClientIndex(1))
    frontend.admit(session_id=6)
    assert frontend.pulled() == Draining(6, "shutdown", 30.0)


def test_what_was_put_before_the_end_is_sent(frontend: PlayedFrontend) -> None:
    engine = PlayedEngine(frontend.address)
    frontend.admit()
    engine.next()
    for number in range(1000):
        engine.put(EngineCoreOutput("r", 0, number, [number]))
    engine.link.close(last_words="out of memory")
    assert [frontend.pulled().outputs[0].new_token_ids for number in range(1000)] == [[n] for n in range(1000)]
    assert frontend.pulled() == Died(5, "out of memory")


def test_a_frontend_that_reads_nothing_does_not_hold_the_engine_up(tmp_path: Path) -> None:
    frontend = PlayedFrontend(tmp_path)
    engine = PlayedEngine(frontend.address)
    frontend.admit()
    engine.next()
    for _ in range(100):
        engine.put(EngineCoreOutput("x" * 100_000, 0, 0, []))
    started = time.monotonic()
    frontend.close()
    assert engine.next() == SessionLost(ClientIndex(1))
    engine.link.close()
    assert time.monotonic() - started < 6


def test_a_frontend_without_a_ping_is_given_up(frontend: PlayedFrontend) -> None:
    ahead_s = 0.0
    engine = PlayedEngine(frontend.address, clock=lambda: time.monotonic() + ahead_s)
    frontend.admit()
    assert engine.next() == SessionOpened(ClientIndex(1))
    frontend.send(Ping("frontend-1", 1, 1))
    frontend.pulled()
    ahead_s = SILENCE_S - 0.2
    time.sleep(0.3)
    with suppress(zmq.ZMQError):  # it may have woken and gone already
        frontend.router.send_multipart([frontend.routing_id, b"\x04", b"not a ping; it wakes the thread"])
    assert engine.next() == SessionLost(ClientIndex(1))
    engine.link.close()


def test_a_peer_that_goes_while_much_waits_to_be_read_ends_nothing(tmp_path: Path) -> None:
    """With a receive limit and heartbeats libzmq aborts the process here."""
    frontend = PlayedFrontend(tmp_path)
    engine = PlayedEngine(frontend.address)
    frontend.admit()
    engine.next()
    for number in range(20_000):
        engine.put(EngineCoreOutput("r", 0, number, [number]))
        if number % 1000 == 999:
            time.sleep(0.05)
    engine.link.close()
    time.sleep(1.2)
    assert [frontend.pulled().sequence_number for _ in range(20_000)] == list(range(1, 20_001))
    frontend.close()
