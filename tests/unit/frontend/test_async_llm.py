"""The trip of a request through AsyncLLM, with a scripted client in the place of engines."""

import asyncio
import random
from dataclasses import replace

import msgspec
import pytest

from roundhouse.frontend.async_llm import AsyncLLM
from roundhouse.frontend.config import FrontendConfig
from roundhouse.frontend.outputs import RequestOutputKind
from roundhouse.frontend.stats import EngineSample, IterationStats
from roundhouse.protocol.errors import (
    ContextLengthExceeded,
    DuplicateRequestId,
    EngineDeadError,
    EngineGenerateError,
    InvalidRequest,
    NoEngine,
    ShuttingDown,
)
from roundhouse.protocol.messages import OutputError, PoolingParams, SchedulerStats
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from tests.support.faulty_tokenizer import FAULTS, BackendThatFails
from tests.support.scripted_client import HELLO, ScriptedClient, one_by_one, output
from tests.support.small_tokenizers import byte_level, ids_of

TOKENIZER = byte_level()
ABC, DEF, GHI = ids_of(TOKENIZER, "ABC", "DEF", "GHI")
DELTA = RequestOutputKind.DELTA


class Recorder:
    """A stat logger that keeps what it is told."""

    def __init__(self) -> None:
        self.iterations: list[IterationStats] = []
        self.samples: list[EngineSample] = []

    def record(self, iteration, engine):
        self.iterations.append(iteration)
        if engine is not None:
            self.samples.append(engine)

    @property
    def finish_reasons(self):
        return [str(each.finish_reason) for iteration in self.iterations for each in iteration.finished]


def make_llm(client, *, config=None, recorder=None):
    rng = random.Random(0)
    return AsyncLLM(
        config or FrontendConfig(),
        TOKENIZER,
        client,
        stat_loggers=[recorder] if recorder else [],
        monotonic=lambda: 100.0,
        wall=lambda: 1000.0,
        random_bits=rng.getrandbits,
    )


def run(test, *, client=None, **options):
    """Runs `test(llm, client)` in an event loop and shuts the llm down; nothing may be left of any request."""

    async def main():
        used = client or ScriptedClient()
        llm = make_llm(used, **options)
        try:
            await test(llm, used)
            processor = llm.output_processor
            assert (processor.request_states, processor.parents, processor.reservations) == ({}, {}, {})
        finally:
            llm.shutdown()

    asyncio.run(main())


async def collect(generator):
    return [each async for each in generator]


def spells(*token_ids):
    return ScriptedClient(lambda request: one_by_one(request, token_ids))


def test_a_request_from_prompt_to_text():
    async def test(llm, client):
        outputs = await collect(llm.generate("Hi", SamplingParams(), "r", output_kind=DELTA))
        assert "".join(each.outputs[0].text for each in outputs) == "ABCDEF"
        assert [each.finished for each in outputs][-1:] == [True]
        assert {each.request_id for each in outputs} == {"r"}
        assert outputs[-1].outputs[0].finish_reason == "length"
        assert client.aborted == []

    run(test, client=spells(ABC, DEF))


def test_outputs_are_cumulative_by_default():
    async def test(llm, client):
        outputs = await collect(llm.generate([1, 2], SamplingParams(), "r"))
        assert (outputs[-1].outputs[0].text, outputs[-1].outputs[0].token_ids) == ("ABCDEF", [ABC, DEF])

    run(test, client=spells(ABC, DEF))


def test_a_request_is_registered_before_anything_waits():
    async def test(llm, client):
        adding = llm.add_request("r", "Hi", SamplingParams())
        waits = asyncio.Event()

        async def before_add(request):
            assert list(llm.output_processor.request_states) == [request.request_id]
            waits.set()

        client.before_add = before_add
        await adding
        assert waits.is_set()
        await llm.abort("r")

    run(test)


def test_ids_inside_are_never_the_same_twice():
    async def test(llm, client):
        for _ in range(2):
            await collect(llm.generate("Hi", SamplingParams(), "r"))
        first, second = (request.request_id for request in client.added)
        assert first.startswith("r-")
        assert len(first) == len("r-") + 8
        assert first != second

    run(test, client=spells(ABC))


def test_a_long_text_is_tokenized_off_the_loop_and_its_id_taken_meanwhile():
    async def test(llm, client):
        first = asyncio.create_task(collect(llm.generate("Hello world", SamplingParams(), "r")))
        await asyncio.sleep(0)
        with pytest.raises(DuplicateRequestId):
            await llm.add_request("r", "Hi", SamplingParams())
        assert (await first)[-1].finished

    run(test, client=spells(ABC), config=FrontendConfig(tokenize_in_thread_above_chars=4))


def test_an_abort_while_tokenizing_sends_nothing():
    async def test(llm, client):
        generating = asyncio.create_task(collect(llm.generate("Hello world", SamplingParams(n=2), "r")))
        await asyncio.sleep(0)
        await llm.abort("r")
        (only,) = await generating
        assert [each.finish_reason for each in only.outputs] == ["abort", "abort"]
        assert client.added == []

    run(test, config=FrontendConfig(tokenize_in_thread_above_chars=4))


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_several_choices(kind):
    async def test(llm, client):
        outputs = await collect(llm.generate("Hi", SamplingParams(n=3), "r", output_kind=kind))
        texts = dict.fromkeys(range(3), "")
        for each in outputs:
            for choice in each.outputs:
                texts[choice.index] = texts[choice.index] + choice.text if kind is DELTA else choice.text
        assert texts == {0: "ABCDEF", 1: "ABCDEF", 2: "ABCDEF"}
        assert [each.finished for each in outputs].count(True) == 1
        parent = client.added[0].request_id.removeprefix("0_")
        assert [request.request_id for request in client.added] == [f"{index}_{parent}" for index in range(3)]
        assert len({request.sampling_params.seed for request in client.added}) == 1

    run(test, client=spells(ABC, DEF))


def test_a_failure_to_send_one_choice_aborts_the_others():
    async def test(llm, client):
        async def before_add(request):
            if request.child_index == 1:
                client.refusal = NoEngine("none")

        client.before_add = before_add
        with pytest.raises(NoEngine):
            await collect(llm.generate("Hi", SamplingParams(n=3), "r"))
        assert [request.child_index for request in client.added] == [0]
        assert client.added[0].request_id in client.aborted

    run(test)


def test_a_refused_request_leaves_nothing_behind():
    async def test(llm, client):
        for prompt, options, error in [
            ("", {}, InvalidRequest),
            ([10**6], {}, InvalidRequest),
            ("Hi", {"lora_request": object()}, InvalidRequest),
            ([1] * HELLO.max_model_len, {}, ContextLengthExceeded),
        ]:
            with pytest.raises(error):
                await collect(llm.generate(prompt, SamplingParams(), "r", **options))
        with pytest.raises(InvalidRequest, match="embed"):
            await collect(llm.encode("Hi", PoolingParams(), "r"))
        assert client.added == []

    run(test)


@pytest.mark.parametrize(
    ("lengths", "expected"), [([40, 1, 40], 40), ([40, 1], 40), ([20, 40], 40), ([20, 20, 40], 20), ([10**6], 4096)]
)
def test_no_single_engine_decides_what_context_all_of_them_serve(lengths: list[int], expected: int):
    client = ScriptedClient()
    (view,) = client.engines()
    views = [replace(view, hello=msgspec.structs.replace(HELLO, max_model_len=length)) for length in lengths]
    client.engines = lambda: views  # type: ignore[method-assign]
    assert make_llm(client).max_model_len == min(expected, TOKENIZER.max_model_len)


def test_the_smallest_context_of_model_settings_and_engines_counts():
    client = ScriptedClient()
    assert make_llm(client).max_model_len == HELLO.max_model_len
    assert make_llm(client, config=FrontendConfig(max_model_len=50)).max_model_len == 50
    client.hello = None
    assert make_llm(client).max_model_len == TOKENIZER.max_model_len


def test_a_live_id_is_refused_to_the_second_caller_only():
    async def test(llm, client):
        first = asyncio.create_task(collect(llm.generate("Hi", SamplingParams(), "r", output_kind=DELTA)))
        await client.settle()
        with pytest.raises(DuplicateRequestId):
            await collect(llm.generate("Hi", SamplingParams(), "r"))
        client.send(output(client.added[0], [ABC], FinishReason.LENGTH))
        assert [each.outputs[0].text for each in await first] == ["ABC"]
        assert len(client.added) == 1

    run(test)


def test_cancelling_a_caller_aborts_in_the_engine():
    async def test(llm, client):
        generating = asyncio.create_task(collect(llm.generate("Hi", SamplingParams(n=2), "r")))
        await client.settle()
        generating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await generating
        assert client.aborted == [request.request_id for request in client.added]

    recorder = Recorder()
    run(test, recorder=recorder)
    assert recorder.finish_reasons == ["abort", "abort"]


def test_leaving_the_generator_aborts_in_the_engine():
    async def test(llm, client):
        generator = llm.generate("Hi", SamplingParams(), "r")
        first = asyncio.create_task(anext(generator))
        await client.settle()
        client.send(output(client.added[0], [ABC]))
        assert (await first).outputs[0].text == "ABC"
        await generator.aclose()
        assert client.aborted == [client.added[0].request_id]

    run(test)


def test_leaving_at_the_last_output_aborts_nobody_with_the_same_id():
    async def test(llm, client):
        generator = llm.generate("Hi", SamplingParams(), "r")
        first = asyncio.create_task(anext(generator))
        await client.settle()
        client.send(output(client.added[0], [ABC], FinishReason.LENGTH))
        assert (await first).finished
        again = asyncio.create_task(collect(llm.generate("Hi", SamplingParams(), "r", output_kind=DELTA)))
        await client.settle()
        await generator.aclose()
        assert client.aborted == []
        client.send(output(client.added[1], [DEF], FinishReason.LENGTH))
        assert [each.outputs[0].text for each in await again] == ["DEF"]

    run(test)


def test_an_abort_from_elsewhere_ends_the_stream():
    async def test(llm, client):
        generating = asyncio.create_task(collect(llm.generate("Hi", SamplingParams(), "r", output_kind=DELTA)))
        await client.settle()
        client.send(output(client.added[0], [ABC]))
        await client.settle()
        await llm.abort(["r", "unknown"])
        outputs = await generating
        assert [(each.outputs[0].text, each.outputs[0].finish_reason) for each in outputs] == [
            ("ABC", None),
            ("", "abort"),
        ]
        assert client.aborted == [client.added[0].request_id]

    run(test)


def test_an_abort_that_overtakes_its_request_is_repeated_behind_it():
    async def test(llm, client):
        async def before_add(request):
            await llm.abort("r")

        client.before_add = before_add
        (only,) = await collect(llm.generate("Hi", SamplingParams(), "r"))
        assert only.outputs[0].finish_reason == "abort"
        request_id = client.added[0].request_id
        assert client.aborted == [request_id, request_id]

    run(test)


def test_a_stop_string_aborts_in_the_engine():
    async def test(llm, client):
        outputs = await collect(llm.generate("Hi", SamplingParams(stop=["DEF"]), "r", output_kind=DELTA))
        assert "".join(each.outputs[0].text for each in outputs) == "ABC"
        assert (outputs[-1].outputs[0].finish_reason, outputs[-1].outputs[0].stop_reason) == ("stop", "DEF")
        await client.settle()
        assert client.aborted == [client.added[0].request_id]
        assert client.added[0].sampling_params.stop == []

    run(test, client=spells(ABC, DEF, GHI))


def test_an_error_of_one_request_is_its_callers():
    async def test(llm, client):
        failing = asyncio.create_task(collect(llm.generate("Hi", SamplingParams(), "bad")))
        other = asyncio.create_task(collect(llm.generate("Hi", SamplingParams(), "good")))
        await client.settle()
        bad, good = client.added
        client.send(
            output(bad, [], FinishReason.ERROR, error=OutputError("engine_dead", "the engine is gone")),
            output(good, [ABC], FinishReason.LENGTH),
        )
        with pytest.raises(EngineDeadError, match="the engine is gone"):
            await failing
        assert (await other)[-1].finished
        assert not llm.errored
        assert client.aborted == []

    run(test)


def test_a_slow_consumer_gets_one_bigger_output():
    async def test(llm, client):
        generator = llm.generate("Hi", SamplingParams(), "r", output_kind=DELTA)
        first = asyncio.create_task(anext(generator))
        await client.settle()
        for item in one_by_one(client.added[0], [ABC, DEF, GHI]):
            client.send(item)
            await client.settle()
        assert (await first).outputs[0].text == "ABC"
        second = await anext(generator)
        assert (second.outputs[0].text, second.outputs[0].token_ids, second.finished) == ("DEFGHI", [DEF, GHI], True)
        assert await collect(generator) == []

    run(test)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), EngineDeadError("the reader ended")])
def test_a_failure_of_the_output_handler_reaches_every_caller(error):
    async def test(llm, client):
        callers = [asyncio.create_task(collect(llm.generate("Hi", SamplingParams(), str(i)))) for i in range(3)]
        await client.settle()
        assert llm.is_running
        client.fail(error)
        for result in await asyncio.gather(*callers, return_exceptions=True):
            assert isinstance(result, EngineDeadError)
        assert (llm.errored, llm.is_running) == (True, False)
        with pytest.raises(EngineDeadError):
            await llm.check_health()
        with pytest.raises(EngineDeadError):
            await llm.add_request("r", "Hi", SamplingParams())

    run(test)


def test_a_bug_in_a_callers_path_is_one_requests_error():
    async def test(llm, client):
        async def before_add(request):
            raise ZeroDivisionError

        client.before_add = before_add
        with pytest.raises(EngineGenerateError):
            await collect(llm.generate("Hi", SamplingParams(), "r"))
        assert not llm.errored

    run(test)


@pytest.mark.parametrize("text", ["Hi", "Hi" * 200], ids=["on the loop", "on a thread"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_tokenizer_that_breaks_is_one_requests_error(fault, text, monkeypatch):
    async def test(llm, client):
        broken = replace(TOKENIZER, backend=BackendThatFails(FAULTS[fault]))
        monkeypatch.setattr(llm.input_processor, "_tokenizer", broken)
        with pytest.raises(EngineGenerateError, match="tokenized"):
            await collect(llm.generate(text, SamplingParams(), "r"))
        assert llm.is_running
        (last,) = await collect(llm.generate([ABC], SamplingParams(max_tokens=1), "r", output_kind=DELTA))
        assert last.finished

    config = FrontendConfig(tokenize_in_thread_above_chars=100)
    run(test, client=ScriptedClient(lambda request: one_by_one(request, [ABC])), config=config)


def test_a_panic_in_the_output_handler_reaches_every_caller():
    class PanickingLogger(Recorder):
        def record(self, iteration, engine):
            if iteration.num_generation_tokens:
                FAULTS["panic"]()

    async def test(llm, client):
        with pytest.raises(EngineDeadError, match="output handler failed"):
            await collect(llm.generate("Hi", SamplingParams(max_tokens=2), "r"))
        assert llm.errored

    run(test, client=ScriptedClient(lambda request: one_by_one(request, [ABC, DEF])), recorder=PanickingLogger())


def test_shutdown_ends_every_request_and_closes_the_client():
    async def test(llm, client):
        generating = asyncio.create_task(collect(llm.generate("Hi", SamplingParams(), "r")))
        await client.settle()
        llm.shutdown()
        llm.shutdown()
        with pytest.raises(ShuttingDown):
            await generating
        with pytest.raises(ShuttingDown):
            await llm.add_request("r", "Hi", SamplingParams())
        assert client.is_shut_down
        assert (llm.errored, llm.is_running) == (False, False)

    run(test)


def test_stats_reach_the_loggers():
    recorder = Recorder()
    stats = SchedulerStats(num_running_reqs=3)

    async def test(llm, client):
        generating = asyncio.create_task(collect(llm.generate("Hi", SamplingParams(), "r", arrival_time=998.0)))
        await client.settle()
        client.send(output(client.added[0], [ABC], FinishReason.LENGTH), stats=stats)
        await generating
        await client.settle()

    run(test, recorder=recorder)
    assert recorder.samples == [EngineSample((0, HELLO.epoch), stats)]
    assert recorder.finish_reasons == ["length"]
    assert [s for each in recorder.iterations for s in each.time_to_first_token_s] == [2.0]


def test_an_abort_storm_leaves_nothing():
    """Adds, tokens, cancellations and aborts in random order, with ids used again."""
    recorder = Recorder()
    rng = random.Random(1)

    async def test(llm, client):
        tasks: list[asyncio.Task] = []
        for round_number in range(2000):
            name = f"r{rng.randrange(40)}"
            action = rng.randrange(4)
            if action == 0:
                tasks.append(
                    asyncio.create_task(collect(llm.generate("Hi", SamplingParams(n=1 + round_number % 2), name)))
                )
            elif action == 1 and tasks:
                rng.choice(tasks).cancel()
            elif action == 2:
                await llm.abort(name)
            elif client.added:
                request = rng.choice(client.added[-20:])
                state = llm.output_processor.request_states.get(request.request_id)
                first = len(state.token_ids) if state else 0
                client.send(output(request, [ABC], rng.choice([None, FinishReason.LENGTH]), first=first))
            await asyncio.sleep(0)
        await llm.abort(list(llm.output_processor.parents))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} <= {list, asyncio.CancelledError, DuplicateRequestId}
        assert len(recorder.finish_reasons) == len(client.added)

    run(test, recorder=recorder)
