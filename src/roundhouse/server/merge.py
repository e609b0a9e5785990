"""The outputs of several prompts' generators as one stream of batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

from roundhouse.frontend.outputs import RequestOutput

Outputs: TypeAlias = AsyncGenerator[RequestOutput, None]
Batch: TypeAlias = list[tuple[int, RequestOutput]]
"""(index of the prompt, output), at most one for each prompt."""


async def merge(generators: list[Outputs]) -> AsyncGenerator[Batch, None]:
    """All that is there at one wake-up is one batch. A generator is asked again only after its batch was taken, so that
    a slow reader slows it; the first that raises ends all. Closes every generator, however it ends."""
    if len(generators) == 1:
        async with aclosing(generators[0]) as outputs:
            async for output in outputs:
                yield [(0, output)]
        return
    asked = {_ask(outputs): i for i, outputs in enumerate(generators)}
    try:
        while asked:
            done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            batch: Batch = []
            for task in done:
                i = asked.pop(task)
                if (output := task.result()) is not None:
                    batch.append((i, output))
            if batch:
                yield sorted(batch, key=lambda entry: entry[0])
            asked.update({_ask(generators[i]): i for i, _ in batch})
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for outputs in generators:
            await outputs.aclose()


def _ask(outputs: Outputs) -> asyncio.Task[RequestOutput | None]:
    async def ask() -> RequestOutput | None:
        return await anext(outputs, None)

    return asyncio.create_task(ask(), name="prompt of a request")
