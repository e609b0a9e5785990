"""Comments in an event stream while it has nothing to say: proxies and clients give up connections that are silent.

A line that begins with a colon is no event and clients skip it (WHATWG HTML, server-sent events).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.types import Send

KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 10.0

Write = Callable[[bytes], Awaitable[None]]


@asynccontextmanager
async def kept_alive(send: Send, *, interval_s: float = KEEP_ALIVE_S) -> AsyncIterator[Write]:
    """Inside the block what is yielded writes a part of the body, and `KEEP_ALIVE` is written whenever nothing was for
    `interval_s`. Nothing of it comes after the block.
    """
    loop = asyncio.get_running_loop()
    last_write = loop.time()

    async def write(body: bytes) -> None:
        nonlocal last_write
        last_write = loop.time()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        last_write = loop.time()

    async def watch() -> None:
        while True:
            await asyncio.sleep(max(0.0, last_write + interval_s - loop.time()))
            if loop.time() - last_write >= interval_s:
                await write(KEEP_ALIVE)

    watcher = asyncio.create_task(watch(), name="keep-alive")
    try:
        yield write
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
