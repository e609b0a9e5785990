import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from roundhouse.server.disconnect import until_disconnect


class Client:
    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.is_listened_to = False

    async def receive(self) -> dict[str, Any]:
        self.is_listened_to = True
        try:
            return await self.messages.get()
        finally:
            self.is_listened_to = False

    def leave(self) -> None:
        self.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self.messages.put_nowait({"type": "http.disconnect"})


class Work:
    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.is_running = asyncio.Event()
        self.was_cancelled = False

    async def run(self, result: Any = None) -> Any:
        try:
            self.is_running.set()
            await self.finish.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.was_cancelled = True
            raise
        if isinstance(result, Exception):
            raise result
        return result


def test_the_result_comes_back_and_nobody_listens_any_more() -> None:
    async def scenario() -> None:
        client, work = Client(), Work()
        work.finish.set()
        assert await until_disconnect(client.receive, work.run(5)) == 5
        assert not client.is_listened_to

    asyncio.run(scenario())


def test_an_error_comes_back_as_it_is() -> None:
    async def scenario() -> None:
        work = Work()
        work.finish.set()
        with pytest.raises(KeyError):
            await until_disconnect(Client().receive, work.run(KeyError("x")))

    asyncio.run(scenario())


def test_a_departure_cancels_the_work_and_waits_for_its_end() -> None:
    async def scenario() -> None:
        client, work = Client(), Work()
        client.leave()
        with pytest.raises(ClientDisconnect):
            await until_disconnect(client.receive, work.run())
        assert work.was_cancelled

    asyncio.run(scenario())


def test_a_cancelled_request_cancels_both() -> None:
    async def scenario() -> None:
        client, work = Client(), Work()
        task = asyncio.create_task(until_disconnect(client.receive, work.run()))
        await work.is_running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (work.was_cancelled, client.is_listened_to) == (True, False)

    asyncio.run(scenario())
