"""A client that leaves ends the work for it at once, whether it waits for a stream, an answer or in the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns or raises. When the client leaves first: `work` is cancelled, then `ClientDisconnect`.

    The request's body has been read: the next thing `receive` brings is the client's departure.
    """
    worker = asyncio.create_task(work, name="request")
    listener = asyncio.create_task(_departure(receive), name="disconnect listener")
    try:
        await asyncio.wait((worker, listener), return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientDisconnect
    finally:
        worker.cancel()
        listener.cancel()
        await asyncio.gather(worker, listener, return_exceptions=True)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
