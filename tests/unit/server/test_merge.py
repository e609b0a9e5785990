import asyncio
from collections.abc import AsyncGenerator

import pytest

from roundhouse.frontend.outputs import RequestOutput
from roundhouse.server.merge import merge


class Source:
    """A generator that yields when it is told to, and knows whether it was closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: asyncio.Queue[RequestOutput | Exception | None] = asyncio.Queue()
        self.is_closed = False

    async def outputs(self) -> AsyncGenerator[RequestOutput, None]:
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.is_closed = True

    def put(self, text: str) -> RequestOutput:
        output = RequestOutput(f"{self.name}-{text}", None, [], [], False)
        self.queue.put_nowait(output)
        return output

    def end(self, error: Exception | None = None) -> None:
        self.queue.put_nowait(error)


def test_one_prompt_is_passed_on() -> None:
    async def scenario() -> None:
        source = Source("a")
        first, second = source.put("1"), source.put("2")
        source.end()
        assert [batch async for batch in merge([source.outputs()])] == [[(0, first)], [(0, second)]]
        assert source.is_closed

    asyncio.run(scenario())


def test_what_is_ready_together_is_one_batch_in_order() -> None:
    async def scenario() -> None:
        a, b, c = sources = [Source("a"), Source("b"), Source("c")]
        merged = merge([source.outputs() for source in sources])
        c1, a1 = c.put("1"), a.put("1")
        assert await anext(merged) == [(0, a1), (2, c1)]
        b1 = b.put("1")
        assert await anext(merged) == [(1, b1)]
        for source in sources:
            source.end()
        assert [batch async for batch in merged] == []
        assert [source.is_closed for source in sources] == [True, True, True]

    asyncio.run(scenario())


def test_a_slow_reader_is_not_run_ahead_of() -> None:
    async def scenario() -> None:
        a, b = Source("a"), Source("b")
        merged = merge([a.outputs(), b.outputs()])
        a1 = a.put("1")
        assert await anext(merged) == [(0, a1)]
        a.put("2"), a.put("3")
        for _ in range(5):
            await asyncio.sleep(0)
        assert a.queue.qsize() == 2
        await merged.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("num_sources", [1, 3])
def test_an_error_of_one_ends_all(num_sources: int) -> None:
    async def scenario() -> None:
        sources = [Source(str(i)) for i in range(num_sources)]
        merged = merge([source.outputs() for source in sources])
        sources[0].end(KeyError("x"))
        with pytest.raises(KeyError):
            await anext(merged)
        assert [source.is_closed for source in sources] == [True] * num_sources

    asyncio.run(scenario())


@pytest.mark.parametrize("num_sources", [1, 3])
@pytest.mark.parametrize("is_waiting", [True, False])
def test_closing_closes_every_generator(num_sources: int, is_waiting: bool) -> None:
    async def scenario() -> None:
        sources = [Source(str(i)) for i in range(num_sources)]
        merged = merge([source.outputs() for source in sources])
        for source in sources:
            source.put("1")
        await anext(merged)
        if is_waiting:
            waiter = asyncio.create_task(anext(merged))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
        await merged.aclose()
        assert [source.is_closed for source in sources] == [True] * num_sources

    asyncio.run(scenario())
