from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from roundhouse.protocol.machine import InvalidTransition, Machine
from roundhouse.server.door import TABLE, Door, DoorState, Leave, Open


class App:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered.set()
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"fine"})


def client_of(door: Door) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(door), base_url="http://x")


def turned_away(answer: httpx.Response) -> tuple[int, dict[str, Any], str | None]:
    return answer.status_code, answer.json()["error"], answer.headers.get("retry-after")


def test_before_the_app_is_there_everything_is_told_to_come_back() -> None:
    async def scenario() -> None:
        async with client_of(Door()) as client:
            assert turned_away(await client.get("/health")) == (
                503,
                {"message": "the model is being loaded", "type": "server_error", "param": None, "code": "no_engine"},
                "1",
            )

    asyncio.run(scenario())


def test_leaving_finishes_what_is_inside_and_takes_nothing_new() -> None:
    async def scenario() -> None:
        door, app = Door(), App()
        door.open(app)
        async with client_of(door) as client:
            inside = asyncio.create_task(client.get("/v1/models"))
            await app.entered.wait()
            door.leave()
            status, error, retry_after = turned_away(await client.get("/health"))
            assert (status, error["code"], retry_after) == (503, "shutting_down", "1")
            empty = asyncio.create_task(door.wait_until_empty())
            await asyncio.sleep(0)
            assert not empty.done()
            app.go_on.set()
            assert (await inside).text == "fine"
            await empty
            assert (await client.get("/metrics")).text == "fine"

    asyncio.run(scenario())


@pytest.mark.parametrize("event", [Open, Leave])
@pytest.mark.parametrize("state", DoorState)
def test_every_pair_is_in_the_table_or_refused(state: DoorState, event: type) -> None:
    machine = Machine("door", TABLE, state)
    if (state, event) in TABLE:
        assert machine.move(event) == (state, TABLE[state, event])
    else:
        with pytest.raises(InvalidTransition):
            machine.move(event)
