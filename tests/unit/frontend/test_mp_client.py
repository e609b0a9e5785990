"""The client against a link that is played, in time that is made up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count, islice
from typing import Any, ClassVar

import pytest

from roundhouse.frontend.live_request import Resumed
from roundhouse.frontend.live_requests import WaitLimits
from roundhouse.frontend.liveness import MAX_UNDRAINED_TICKS, TICK_S
from roundhouse.frontend.loss import LossCause
from roundhouse.frontend.membership import MAX_PINGS_OUT, STALLED_S
from roundhouse.frontend.mp_client import AsyncMPClient, random_session_ids
from roundhouse.protocol.errors import EngineDeadError, EngineGenerateError, MessageTooLarge, NoEngine, ShuttingDown
from roundhouse.protocol.frames import ENGINE_TYPES, FRONTEND_TYPES, FrameDecoder, FrameEncoder
from roundhouse.protocol.messages import (
    AbortRequests,
    Admitted,
    Died,
    Draining,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    Hello,
    OutputError,
    Ping,
    Pong,
    Refused,
    SchedulerStats,
    UtilityOutput,
    UtilityRequest,
)
from roundhouse.protocol.sampling import FinishReason
from roundhouse.transport.frontend_link import SendResult
from roundhouse.transport.reach import WARN_EVERY_S
from tests.support.fake_time_loop import FakeTimeLoop, run
from tests.support.mesh import hello, request, routing_id_of


class PlayedLink:
    """Keeps what is sent; `engines` play the other end."""

    is_insecure = False
    num_refused_keys = num_failed_handshakes = num_zap_restarts = num_without_hello = 0
    num_cut: ClassVar[dict[str, int]] = {}

    def __init__(self, address: str, *, insecure_mesh: bool, keys: None) -> None:
        self.address = address
        self.engines: dict[bytes, PlayedEngine] = {}
        self.waiting: list[Callable[[], None]] = []
        self.is_closed = False

    def start(self, **callbacks: Callable[..., None]) -> None:
        self.on_input = callbacks["on_input"]
        self.on_output = callbacks["on_output"]
        self.on_disconnected = callbacks["on_disconnected"]
        self.on_failure = callbacks["on_failure"]

    def send(self, routing_id: bytes, frames: list[Any], *, generation: int = 0) -> SendResult:
        engine = self.engines.get(routing_id)
        return SendResult.GONE if engine is None else engine.receive(frames)

    def watch(self) -> None:
        pass

    def notice_departures(self) -> None:
        pass

    def drain(self) -> bool:
        waiting, self.waiting = self.waiting, []
        for deliver in waiting:
            deliver()
        return True

    def close(self) -> None:
        self.is_closed = True


class PlayedEngine:
    """Answers pings while `is_answering`; everything else is up to the test."""

    def __init__(self, client: AsyncMPClient, greeting: Hello) -> None:
        client.start()
        self.link: PlayedLink = client.link  # type: ignore[assignment]
        self.greeting = greeting
        self.routing_id = routing_id_of(greeting)
        self.link.engines[self.routing_id] = self
        self.received: list[Any] = []
        self.num_pings = 0
        self.is_answering = True
        self.result = SendResult.SENT
        self.num_outputs = 0
        self.num_lost_frames = 0
        self.link.on_input([self.routing_id, b""])
        self.link.on_input([self.routing_id, *self.encode(greeting)])
        self.say(greeting)

    @property
    def admitted(self) -> Admitted:
        assert isinstance(self.received[0], Admitted)
        return self.received[0]

    @staticmethod
    def encode(message: Any) -> list[Any]:
        return FrameEncoder(ENGINE_TYPES).encode(message)

    def receive(self, frames: list[Any]) -> SendResult:
        if self.result is not SendResult.SENT:
            return self.result
        message = FrameDecoder(FRONTEND_TYPES).decode(frames)
        if isinstance(message, Ping):
            self.num_pings += 1
            if self.is_answering:
                counted = len(self.received) - self.num_lost_frames
                asyncio.get_running_loop().call_soon(self.pong, message, counted)
        else:
            self.received.append(message)
        return SendResult.SENT

    def pong(self, ping: Ping, counted: int) -> None:
        self.say(Pong(self.admitted.session_id, ping.ping_number, counted, self.num_outputs, SchedulerStats()))

    def say(self, message: Any) -> None:
        self.link.on_output(self.encode(message))

    def output(self, *outputs: EngineCoreOutput, **fields: Any) -> None:
        self.num_outputs += 1
        stamps = (self.admitted.session_id, self.admitted.engine_index, self.greeting.epoch, self.num_outputs)
        self.say(EngineCoreOutputs(*stamps, list(outputs), **fields))

    def vanish(self) -> None:
        del self.link.engines[self.routing_id]
        self.link.on_disconnected()


def new_client(**options: Any) -> AsyncMPClient:
    def now() -> float:
        return asyncio.get_running_loop().time()

    options = {"session_ids": count(1), "clock": now, "make_link": PlayedLink} | options
    return AsyncMPClient("tcp://127.0.0.1:5570", **options)


def states(client: AsyncMPClient) -> list[str]:
    return [view.state for view in client.engines()]


def resumed_elsewhere(client: AsyncMPClient) -> tuple[dict[LossCause, int], int]:
    """Resumes by cause, zeros left out, and the tokens that were replayed for them."""
    counters = client.counters
    return {cause: number for cause, number in counters.num_resumes.items() if number}, counters.num_replayed_tokens


def test_a_request_goes_out_and_its_outputs_come_in() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        assert await client.wait_for_engine() == engine.greeting
        asked = request("r", max_tokens=2)
        await client.add_request_async(asked)
        assert engine.received == [Admitted(client.instance, 1, 0, 1, 2**26), asked]
        engine.output(EngineCoreOutput("r", 0, 0, [7]))
        assert client.engines()[0].num_inflight == 1
        assert (await client.get_output_async()).outputs == [EngineCoreOutput("r", 0, 0, [7])]
        engine.output(EngineCoreOutput("r", 0, 1, [8], FinishReason.LENGTH))
        assert (await client.get_output_async()).outputs[0].finished
        assert client.engines()[0].num_inflight == 0

    run(main())


def test_requests_are_spread_pinned_and_aborted_where_they_are() -> None:
    async def main() -> None:
        client = new_client()
        engines = [PlayedEngine(client, hello(name)) for name in "abc"]
        for number in range(6):
            await client.add_request_async(request(f"r{number}"))
        assert [view.num_inflight for view in client.engines()] == [2, 2, 2]
        await client.add_request_async(request("pinned", data_parallel_rank=2))
        assert engines[2].received[-1].request_id == "pinned"
        with pytest.raises(NoEngine, match="no engine with index 3"):
            await client.add_request_async(request("nowhere", data_parallel_rank=3))
        await client.abort_requests_async(["pinned", "nowhere"])
        assert [engine.received[-1] == AbortRequests(["pinned"]) for engine in engines] == [False, False, True]

    run(main())


def test_an_engine_that_is_found_gone_is_skipped_and_lost() -> None:
    async def main() -> None:
        client = new_client()
        engines = [PlayedEngine(client, hello(name)) for name in "ab"]
        await client.add_request_async(request("first"))
        holder = next(engine for engine in engines if len(engine.received) == 2)
        other = next(engine for engine in engines if engine is not holder)
        holder.result = SendResult.GONE
        for number in range(4):
            await client.add_request_async(request(f"r{number}"))
        assert len(other.received) == 5
        await asyncio.sleep(0.1)
        assert other.received[-1] == request("first", attempt=1)
        assert [view.num_inflight for view in client.engines()] == [5]

    run(main())


def test_a_broken_connection_makes_the_client_ask_who_it_was() -> None:
    async def main() -> None:
        client = new_client()
        engine, other = PlayedEngine(client, hello("a")), PlayedEngine(client, hello("b"))
        started = asyncio.get_running_loop().time()
        engine.vanish()
        assert len(client.engines()) == 2
        await asyncio.sleep(0.051)
        assert asyncio.get_running_loop().time() - started < 0.06
        assert [view.identity for view in client.engines()] == ["b"]
        assert other.num_pings >= 2

    run(main())


@pytest.mark.parametrize("is_answering", [True, False])
def test_ten_thousand_connections_that_end_cost_a_live_engine_nothing(is_answering: bool) -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await client.add_request_async(request("r"))
        engine.is_answering = is_answering
        for _ in range(100):
            for _ in range(100):
                engine.link.on_disconnected()
            await asyncio.sleep(0.001)
        await asyncio.sleep(1.0)
        assert engine.num_pings < 15
        assert (states(client), client.counters.num_lost) == (["admitted"], 0)
        engine.output(EngineCoreOutput("r", 0, 0, [7], FinishReason.STOP))
        assert (await client.get_output_async()).outputs == [EngineCoreOutput("r", 0, 0, [7], FinishReason.STOP)]

    run(main())


def test_a_full_window_of_pings_is_waited_for_and_no_pong_to_it_is_held_against_the_engine() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        engine.is_answering = False
        await asyncio.sleep(0)
        first = engine.num_pings + 1
        while engine.num_pings < MAX_PINGS_OUT + first - 1:
            engine.link.on_disconnected()
            await asyncio.sleep(0.005)
        for _ in range(20):
            engine.link.on_disconnected()
            await asyncio.sleep(0.05)
        assert engine.num_pings == MAX_PINGS_OUT + first - 1
        for number in range(first, first + MAX_PINGS_OUT):
            engine.pong(Ping("", 1, number), 1)
        assert (states(client), client.counters.num_lost) == (["admitted"], 0)
        engine.is_answering = True
        await asyncio.sleep(1.5)
        assert engine.num_pings > MAX_PINGS_OUT + first - 1

    run(main())


def test_session_ids_are_random_and_none_comes_twice() -> None:
    found = list(islice(random_session_ids(), 1000))
    assert len(set(found)) == 1000
    assert all(0 < session_id < 2**63 for session_id in found)
    assert max(found) > 2**55

    async def main() -> None:
        client = new_client(session_ids=None)
        engine = PlayedEngine(client, hello())
        engine.say(Died(1, "forged"))
        assert (states(client), client.counters.num_late_messages) == (["admitted"], 1)
        engine.say(Died(engine.admitted.session_id, "true"))
        assert states(client) == []

    run(main())


@pytest.mark.parametrize(
    "load", [SchedulerStats(kv_cache_usage=float("nan")), SchedulerStats(kv_cache_usage=float("inf")),
             SchedulerStats(num_waiting_reqs=-1), SchedulerStats(num_generation_tokens_total=-5)]
)  # fmt: skip
def test_a_load_that_cannot_be_is_malformed(load: SchedulerStats) -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await client.add_request_async(request("r"))
        engine.say(Pong(1, 1, 1, 0, load))
        assert (client.counters.num_malformed, client.engines()[0].load) == (1, SchedulerStats())
        engine.output(EngineCoreOutput("r", 0, 0, [7]), scheduler_stats=load)
        assert (client.counters.num_malformed, client.engines()[0].load) == (2, SchedulerStats())
        engine.output(EngineCoreOutput("r", 0, 1, [7]))
        assert engine.received[-1] == Refused("session_over", "output 2 came where 1 was due")
        assert (states(client), client.num_waiting) == ([], 1)

    run(main())


def test_what_an_engine_said_before_it_went_still_counts() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await client.add_request_async(request("r"))
        engine.vanish()
        for index in range(10):
            last = FinishReason.STOP if index == 9 else None
            await asyncio.sleep(0.03)
            engine.link.waiting.append(partial(engine.output, EngineCoreOutput("r", 0, index, [7], last)))
        for index in range(10):
            assert (await client.get_output_async()).outputs[0].first_token_index == index
        await asyncio.sleep(1)
        assert (client.engines(), client.counters.num_requests_lost) == ([], 0)

    run(main())


def test_a_peer_that_does_not_read_is_lost() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        engine.result = SendResult.FULL
        await client.add_request_async(request("r"))
        await asyncio.sleep(0.1)
        assert (client.engines(), client.num_waiting, client.counters.num_requests_lost) == ([], 1, 0)

    run(main())


def test_silence_stalls_then_loses_and_a_pong_brings_an_engine_back() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await asyncio.sleep(10)
        assert states(client) == ["admitted"]
        engine.is_answering = False
        await asyncio.sleep(4.5)
        assert states(client) == ["stalled"]
        await client.add_request_async(request("r"))
        assert client.num_waiting == 1
        engine.is_answering = True
        await asyncio.sleep(1.5)
        assert (engine.received[-1], client.num_waiting) == (request("r"), 0)
        engine.is_answering = False
        await asyncio.sleep(62)
        assert engine.received[-1] == Refused("session_over", "silent for 60 s")
        other = PlayedEngine(client, hello("b"))
        assert other.received[-1] == request("r", attempt=1)
        other.output(EngineCoreOutput("r", 1, 0, [7], FinishReason.LENGTH))
        assert resumed_elsewhere(client) == ({LossCause.STALLED: 1}, 3)

    run(main())


def test_who_floods_the_sockets_hides_nobodys_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await asyncio.sleep(1.1)
        monkeypatch.setattr(PlayedLink, "drain", lambda _: False)
        engine.is_answering = False
        await asyncio.sleep(MAX_UNDRAINED_TICKS * TICK_S - 0.1)
        assert states(client) == ["admitted"]
        await asyncio.sleep(STALLED_S + TICK_S)
        assert states(client) == ["stalled"]

    run(main())


def test_a_pause_of_this_process_is_not_held_against_the_engines() -> None:
    async def main() -> None:
        client = new_client()
        PlayedEngine(client, hello())
        await asyncio.sleep(1.1)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, FakeTimeLoop)
        loop.stand_still(300.0)
        await asyncio.sleep(0.01)
        assert states(client) == ["admitted"]

    run(main())


def test_a_missing_output_ends_the_session() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await client.add_request_async(request("r", max_tokens=9))
        engine.output(EngineCoreOutput("r", 0, 0, [7]))
        engine.num_outputs += 1
        engine.output(EngineCoreOutput("r", 0, 2, [9]))
        assert engine.received[-1] == Refused("session_over", "output 3 came where 2 was due")
        engine.output(EngineCoreOutput("r", 0, 3, [9]))
        assert client.counters.num_late_messages == 1
        other = PlayedEngine(client, hello("b"))
        assert other.received[-1] == request("r", max_tokens=9, attempt=1, output_token_ids=[7])
        other.output(EngineCoreOutput("r", 1, 1, [8]))
        assert [(await client.get_output_async()).outputs for _ in range(2)] == [
            [EngineCoreOutput("r", 0, 0, [7])],
            [EngineCoreOutput("r", 1, 1, [8])],
        ]
        assert resumed_elsewhere(client) == ({LossCause.GAP: 1}, 4)

    run(main())


def test_a_missing_request_ends_the_session_after_a_second() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await client.add_request_async(request("r"))
        engine.num_lost_frames = 1
        other = PlayedEngine(client, hello("b"))
        await asyncio.sleep(2.6)
        assert engine.received[-1] == Refused("session_over", "control frames were lost on the way, 2 were sent")
        assert other.received[-1] == request("r", attempt=1)

    run(main())


def test_late_outputs_are_dropped_and_counted() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await client.add_request_async(request("r", max_tokens=9, attempt=1))
        engine.output(
            EngineCoreOutput("r", 0, 0, [7]), EngineCoreOutput("x", 1, 0, [7]), EngineCoreOutput("r", 1, 0, [8])
        )
        assert (await client.get_output_async()).outputs == [EngineCoreOutput("r", 1, 0, [8])]
        assert client.counters.num_late_outputs == 2
        await client.abort_requests_async(["r"])
        engine.output(EngineCoreOutput("r", 1, 1, [8]))
        assert client.counters.num_late_outputs == 3

    run(main())


def test_draining_and_last_words() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await client.add_request_async(request("r"))
        engine.say(Draining(1, "shutdown", 30.0))
        assert states(client) == ["draining"]
        await asyncio.sleep(0.01)
        await client.add_request_async(request("s"))
        assert client.num_waiting == 1
        engine.say(Died(1, "out of memory"))
        assert (states(client), client.num_waiting) == ([], 2)
        other = PlayedEngine(client, hello("b"))
        assert other.received[1:] == [request("r", attempt=1), request("s")]

    run(main())


def test_a_drain_moves_streams_without_a_break() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello("a"))
        await client.add_request_async(request("r", max_tokens=20))
        engine.output(EngineCoreOutput("r", 0, 0, [7, 8]))
        other = PlayedEngine(client, hello("b"))
        engine.say(Draining(1, "shutdown", 30.0))
        assert engine.received[-1] == AbortRequests(["r"])
        assert other.received[-1] == request("r", max_tokens=20, attempt=1, output_token_ids=[7, 8])
        assert [view.num_inflight for view in client.engines()] == [0, 1]
        engine.output(EngineCoreOutput("r", 0, 2, [9]))
        assert client.counters.num_late_outputs == 1
        other.output(EngineCoreOutput("r", 1, 2, [9], FinishReason.LENGTH))
        assert resumed_elsewhere(client) == ({LossCause.DRAINED: 1}, 5)

    run(main())


def test_an_engine_can_be_drained_from_here() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello("a"))
        await client.add_request_async(request("r", max_tokens=20))
        other = PlayedEngine(client, hello("b"))
        assert client.drain_engine("nobody") is False
        assert client.drain_engine("a") is True
        assert (states(client), engine.received[-1]) == (["draining", "admitted"], AbortRequests(["r"]))
        assert other.received[-1] == request("r", max_tokens=20, attempt=1)

    run(main())


def test_what_a_leaving_engine_gives_back_ends_behind_its_last_tokens() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello("a"))
        await client.add_request_async(request("r", prompt=[70000] * 300, max_tokens=8))
        engine.output(EngineCoreOutput("r", 0, 0, [6]))
        engine.say(Draining(1, "shutdown", 30.0))
        PlayedEngine(client, hello("b", max_message_bytes=1024))
        engine.output(EngineCoreOutput("r", 0, 1, [7], FinishReason.ABORT))
        messages = [(await client.get_output_async()).outputs for _ in range(3)]
        assert messages[:2] == [[EngineCoreOutput("r", 0, 0, [6])], [EngineCoreOutput("r", 0, 1, [7])]]
        (end,) = messages[2]
        assert end.error is not None
        assert (end.first_token_index, end.error.code) == (2, "message_too_large")
        assert client.counters.num_requests_lost == 1

    run(main())


def test_an_engine_that_comes_back_is_sent_its_admission_before_what_it_goes_on_with() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello("a", nonce=1))
        await client.add_request_async(request("r", max_tokens=20))
        engine.output(EngineCoreOutput("r", 0, 0, [7]))
        again = PlayedEngine(client, hello("a", nonce=2))
        assert engine.received[-1] == Refused("session_over", "replaced by a new session")
        assert again.received == [
            Admitted(client.instance, 2, 0, 1, 2**26),
            request("r", max_tokens=20, attempt=1, output_token_ids=[7]),
        ]
        again.output(EngineCoreOutput("r", 1, 1, [8]))
        assert resumed_elsewhere(client) == ({LossCause.REPLACED: 1}, 4)

    run(main())


def test_a_killed_engines_stream_goes_on_and_those_who_listen_hear_of_it() -> None:
    async def main() -> None:
        client = new_client()
        heard: list[Resumed] = []
        client.resume_listeners.append(heard.append)
        engine = PlayedEngine(client, hello("a"))
        await client.add_request_async(request("r", max_tokens=20))
        engine.output(EngineCoreOutput("r", 0, 0, [7]))
        other = PlayedEngine(client, hello("b"))
        engine.vanish()
        gone_at = asyncio.get_running_loop().time()
        await asyncio.sleep(0.25)
        gap_s = asyncio.get_running_loop().time() - gone_at
        assert other.received[-1] == request("r", max_tokens=20, attempt=1, output_token_ids=[7])
        other.output(EngineCoreOutput("r", 1, 1, [8]))
        assert heard == [Resumed(LossCause.UNREACHABLE, gap_s, 4)]
        assert resumed_elsewhere(client) == ({LossCause.UNREACHABLE: 1}, 4)

    run(main())


def test_requests_wait_for_an_engine_and_are_given_up_in_time() -> None:
    async def main() -> None:
        client = new_client(wait_limits=WaitLimits(wait_s=5.0))
        started = asyncio.get_running_loop().time()
        await client.add_request_async(request("r"))
        assert client.num_waiting == 1
        error = OutputError("no_engine", "no engine takes requests now")
        answer = await client.get_output_async()
        assert answer.outputs == [EngineCoreOutput("r", 0, 0, [], FinishReason.ERROR, error=error)]
        assert 5.0 <= asyncio.get_running_loop().time() - started <= 5.5
        assert (client.num_waiting, client.counters.num_requests_lost) == (0, 1)

    run(main())


def test_a_request_is_refused_where_none_may_wait() -> None:
    async def main() -> None:
        client = new_client(wait_limits=WaitLimits(wait_s=0.0))
        with pytest.raises(NoEngine, match="no engine takes requests now"):
            await client.add_request_async(request("r"))
        assert client.num_waiting == 0

    run(main())


def test_an_engine_that_leaves_as_it_said_is_not_lost() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        engine.say(Draining(1, "shutdown", 30.0))
        engine.say(Died(1, "done"))
        assert states(client) == []
        assert client.counters.num_lost == 0

    run(main())


def test_utilities_are_answered_by_those_who_were_asked() -> None:
    async def main() -> None:
        client = new_client()
        engines = [PlayedEngine(client, hello(name)) for name in "ab"]
        call = asyncio.create_task(client.call_utility_async("ask", 1))
        await asyncio.sleep(0)
        asked = [engine.received[-1] for engine in engines]
        assert asked == [UtilityRequest(1, "ask", [1]), UtilityRequest(2, "ask", [1])]
        engines[1].output(utility_output=UtilityOutput(1, "not mine"))
        engines[1].output(utility_output=UtilityOutput(2, "b"))
        engines[0].output(utility_output=UtilityOutput(1, "a"))
        assert await call == ["a", "b"]
        failing = asyncio.create_task(client.call_utility_async("ask", engine_index=1))
        await asyncio.sleep(0)
        engines[1].output(utility_output=UtilityOutput(3, failure_message="cannot"))
        with pytest.raises(EngineGenerateError, match="cannot"):
            await failing
        dying = asyncio.create_task(client.call_utility_async("ask"))
        await asyncio.sleep(0)
        engines[0].vanish()
        with pytest.raises(EngineDeadError, match="engine a is lost"):
            await dying

    run(main())


def test_malformed_messages_are_counted_and_end_nothing() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        for frames in ([b""], [b"\x00", b"\xc1"], [b"\x09", b"x"], *([[b"x", b"y"]] * 3)):
            engine.link.on_output(frames)
            engine.link.on_input([engine.routing_id, *frames, b""])
        engine.link.on_input([b"no routing id", *engine.encode(hello())])
        engine.link.on_input([engine.routing_id, *engine.encode(Died(1, "by the wrong socket"))])
        assert client.counters.num_malformed == 14
        await client.add_request_async(request("r"))
        assert isinstance(engine.received[-1], EngineCoreRequest)

    run(main())


def test_a_message_that_is_too_large_for_the_engine_is_not_sent() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello(max_message_bytes=1024))
        with pytest.raises(MessageTooLarge):
            await client.add_request_async(request("r", prompt=list(range(1000))))
        await client.add_request_async(request("r"))
        await asyncio.sleep(5)
        assert (len(engine.received), states(client)) == (2, ["admitted"])

    run(main())


def test_an_engine_whose_outputs_nobody_takes_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roundhouse.frontend.mp_client.MAX_BYTES_WAITING_PER_PEER", 3000)

    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await client.add_request_async(request("r", max_tokens=9))
        for index in range(3):
            engine.output(EngineCoreOutput("r", 0, index, [7], kv_transfer_params={"x": "y" * 250}))
        for _ in range(3):
            await client.get_output_async()
        for index in range(3, 7):
            engine.output(EngineCoreOutput("r", 0, index, [7], kv_transfer_params={"x": "y" * 250}))
        assert client.engines() == []

    run(main())


def test_a_failure_of_the_reader_reaches_everybody_who_waits() -> None:
    async def main() -> None:
        client = new_client()
        engine = PlayedEngine(client, hello())
        await client.add_request_async(request("r", max_tokens=9))
        call = asyncio.create_task(client.call_utility_async("ask"))
        await asyncio.sleep(0)
        engine.output(EngineCoreOutput("r", 0, 0, [7]))
        engine.link.on_failure(RuntimeError("a bug"))
        assert (await client.get_output_async()).outputs[0].new_token_ids == [7]
        for _ in range(2):
            with pytest.raises(EngineDeadError, match="a bug"):
                await client.get_output_async()
        for waiting in (call, client.add_request_async(request("s")), client.wait_for_engine()):
            with pytest.raises(EngineDeadError):
                await waiting
        await client.abort_requests_async(["r"])

    run(main())


def test_shutdown_ends_everybody_who_waits() -> None:
    async def main() -> None:
        client = new_client()
        client.start()
        link: PlayedLink = client.link  # type: ignore[assignment]
        waiting = [asyncio.create_task(client.get_output_async()), asyncio.create_task(client.wait_for_engine())]
        await asyncio.sleep(0)
        client.shutdown()
        client.shutdown()
        assert link.is_closed
        for task in waiting:
            with pytest.raises(ShuttingDown):
                await task

    run(main())


def test_an_open_mesh_is_warned_of_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    class OpenLink(PlayedLink):
        is_insecure = True

    async def main() -> None:
        client = new_client(make_link=OpenLink)
        client.start()
        await asyncio.sleep(2 * WARN_EVERY_S + 1)
        client.shutdown()

    run(main())
    assert [record.message[:13] for record in caplog.records if record.levelname == "WARNING"] == ["INSECURE MESH"] * 3
