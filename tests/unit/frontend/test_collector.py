import asyncio

import pytest

from roundhouse.frontend.collector import RequestOutputCollector
from roundhouse.frontend.outputs import (
    CompletionOutput,
    PositionLogprobs,
    RequestOutput,
    RequestOutputKind,
    TokenLogprob,
)
from roundhouse.protocol.errors import EngineDeadError

DELTA, CUMULATIVE = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE


def position(token_id):
    return PositionLogprobs(TokenLogprob(token_id, "x", b"x", -0.5, 1), [])


def request_output(*choices, finished=False, **more):
    return RequestOutput("r", "prompt", [1], list(choices), finished, **more)


def test_deltas_of_a_slow_consumer_are_added_by_choice():
    collector = RequestOutputCollector(DELTA)
    collector.put(request_output(CompletionOutput(0, "a", [1], -0.5, [position(1)]), prompt_logprobs=[None]))
    collector.put(request_output(CompletionOutput(1, "x", [7])))
    collector.put(
        request_output(
            CompletionOutput(0, "b", [2, 3], -1.5, [position(2), position(3)], "stop", "z"), num_cached_tokens=4
        )
    )
    collector.put(request_output(CompletionOutput(1, "", [], None, None, "length"), finished=True))
    assert collector.get_nowait() == request_output(
        CompletionOutput(0, "ab", [1, 2, 3], -1.5, [position(1), position(2), position(3)], "stop", "z"),
        CompletionOutput(1, "x", [7], None, None, "length"),
        finished=True,
        prompt_logprobs=[None],
        num_cached_tokens=4,
    )
    assert collector.get_nowait() is None


def test_cumulative_outputs_replace_each_other():
    collector = RequestOutputCollector(CUMULATIVE)
    collector.put(request_output(CompletionOutput(0, "a", [1])))
    collector.put(request_output(CompletionOutput(0, "ab", [1, 2])))
    assert collector.get_nowait() == request_output(CompletionOutput(0, "ab", [1, 2]))


def test_an_error_drops_what_waits_and_stays():
    collector = RequestOutputCollector(DELTA)
    collector.put(request_output(CompletionOutput(0, "a", [1])))
    collector.fail(EngineDeadError("gone"))
    collector.fail(ValueError("later"))
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="gone"):
            collector.get_nowait()


def test_get_waits_for_an_output_and_for_an_error():
    async def main():
        collector = RequestOutputCollector(DELTA)
        waiting = asyncio.create_task(collector.get())
        await asyncio.sleep(0)
        assert not waiting.done()
        collector.put(request_output(CompletionOutput(0, "a", [1])))
        collector.put(request_output(CompletionOutput(0, "b", [2])))
        assert (await waiting).outputs[0].text == "ab"

        waiting = asyncio.create_task(collector.get())
        await asyncio.sleep(0)
        collector.fail(EngineDeadError("gone"))
        with pytest.raises(EngineDeadError):
            await waiting

    asyncio.run(main())


def test_a_cancelled_get_loses_nothing():
    async def main():
        collector = RequestOutputCollector(DELTA)
        waiting = asyncio.create_task(collector.get())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        collector.put(request_output(CompletionOutput(0, "a", [1])))
        assert (await collector.get()).outputs[0].text == "a"

    asyncio.run(main())
