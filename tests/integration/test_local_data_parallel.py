"""`roundhouse serve --engines N`: the frontend alone spreads the load, and nobody notices the death of one engine.

Which engine has a request no client can see. What shows it is seats: an engine runs `SEATS` requests at once and lets
the next one wait, and a stream that waits says nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.serve_process import ServeProcess
from tests.support.tiny_chat_model import CONTEXT, write_tiny_chat_model

pytestmark = pytest.mark.timeout(300)

NUM_ENGINES = 4
SEATS = 2
NUM_TOKENS = 500
ENDLESS = CONTEXT - 100
"""Tokens: more than any engine makes while a test lasts."""
WAIT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Iterator[ServeProcess]:
    model = write_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny", smollm2_folder)
    flags = ["--engines", str(NUM_ENGINES), "--max-num-seqs", str(SEATS), "--threads", "1", "--dtype", "float32"]
    flags += ["--num-kv-blocks", "1500", "--grace", "0"]
    with ServeProcess(tmp_path_factory.mktemp("serve") / "log", str(model), flags) as server:
        server.wait_for_line("is admitted", count=NUM_ENGINES)
        yield server


@asynccontextmanager
async def http(server: ServeProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as client:
        yield client


def completion(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


class Stream:
    """A request whose answer is read while it comes. error: the code that it ended with."""

    def __init__(self, client: httpx.AsyncClient, prompt: str, max_tokens: int) -> None:
        self.prompt = prompt
        self.token_ids: list[int] = []
        self.error: str | None = None
        self.has_begun = asyncio.Event()
        self.task = asyncio.create_task(self._read(client, completion(prompt, max_tokens)))

    async def _read(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    self.error = event["error"]["code"]
                    return
                self.token_ids += event["choices"][0]["token_ids"]
                if self.token_ids:
                    self.has_begun.set()


@asynccontextmanager
async def streams(client: httpx.AsyncClient, count: int, max_tokens: int) -> AsyncIterator[list[Stream]]:
    """They have all begun when the block is entered; their clients leave with it."""
    opened = [Stream(client, f"Stream number {index}", max_tokens) for index in range(count)]
    try:
        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*(stream.has_begun.wait() for stream in opened))
        assert not any(stream.task.done() for stream in opened), "a stream was over before the last one began"
        yield opened
    finally:
        for stream in opened:
            stream.task.cancel()
        await asyncio.gather(*(stream.task for stream in opened), return_exceptions=True)


async def answer(client: httpx.AsyncClient, prompt: str, max_tokens: int) -> list[int]:
    got = await client.post("/v1/completions", json=completion(prompt, max_tokens))
    assert got.status_code == 200, got.text
    return got.json()["choices"][0]["token_ids"]


async def eventually(server: ServeProcess, condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(server.wait_until, condition, what, timeout_s=WAIT_S)


def has_load(server: ServeProcess, *, running: int) -> Callable[[], bool]:
    """That many run and nobody waits."""
    return lambda: (
        server.metric("roundhouse_num_requests_running") == running
        and server.metric("roundhouse_num_requests_waiting") == 0
    )


def is_idle(server: ServeProcess) -> Callable[[], bool]:
    return lambda: has_load(server, running=0)() and server.metric("roundhouse_kv_cache_usage") == 0


def test_as_many_streams_as_seats_all_run(server: ServeProcess) -> None:
    async def scenario() -> None:
        async with http(server) as client, streams(client, NUM_ENGINES * SEATS, ENDLESS):
            await eventually(server, has_load(server, running=NUM_ENGINES * SEATS), "streams in all seats")

    asyncio.run(scenario())
    server.wait_until(is_idle(server), "idle engines", timeout_s=WAIT_S)


def test_short_requests_go_where_long_ones_left_room(server: ServeProcess) -> None:
    """One seat is free: whoever is sent elsewhere waits for a stream that does not end."""

    async def scenario() -> None:
        async with http(server) as client, streams(client, NUM_ENGINES * SEATS - 1, ENDLESS) as long:
            for index in range(12):
                assert len(await answer(client, f"Short {index}", 2)) == 2
            assert not any(stream.task.done() for stream in long)

    asyncio.run(scenario())
    server.wait_until(is_idle(server), "idle engines", timeout_s=WAIT_S)


def test_kill_9_of_one_engine_ends_no_stream(server: ServeProcess) -> None:
    async def scenario() -> None:
        pids = server.engine_pids()
        async with http(server) as client:
            async with (
                streams(client, NUM_ENGINES, ENDLESS) as long,
                streams(client, NUM_ENGINES, NUM_TOKENS) as short,
            ):
                os.kill(pids[1], signal.SIGKILL)
                # Each engine had one of both; the killed one's go on with the others.
                await asyncio.gather(*(stream.task for stream in short))
                for index in range(NUM_ENGINES - 1):
                    assert len(await answer(client, f"After the kill {index}", 2)) == 2
                assert not any(stream.task.done() for stream in long)
            assert [stream.error for stream in [*short, *long]] == [None] * 2 * NUM_ENGINES
            for stream in short:
                assert stream.token_ids == await answer(client, stream.prompt, NUM_TOKENS)

            await eventually(server, lambda: server.metric("roundhouse_engines") == NUM_ENGINES, "an engine anew")
            assert [pid in pids for pid in server.engine_pids()] == [True, False, True, True]
            async with streams(client, NUM_ENGINES * SEATS, ENDLESS):
                await eventually(server, has_load(server, running=NUM_ENGINES * SEATS), "streams in the new seats too")

    asyncio.run(scenario())
    server.wait_until(is_idle(server), "idle engines", timeout_s=WAIT_S)


def test_two_engines_with_the_real_model_say_the_same(tmp_path: Path, smollm2_folder: Path) -> None:
    async def scenario(server: ServeProcess) -> None:
        async with http(server) as client:
            async with asyncio.timeout(WAIT_S):
                answers = await asyncio.gather(*(answer(client, "The capital of France is", 8) for _ in range(2)))
            os.kill(server.engine_pids()[0], signal.SIGKILL)
            await eventually(server, lambda: server.metric("roundhouse_engines") == 1, "the loss")
            answers.append(await answer(client, "The capital of France is", 8))
            assert answers == [answers[0]] * 3

    flags = ["--engines", "2", "--max-num-seqs", "1", "--threads", "1", "--dtype", "float32", "--grace", "0"]
    with ServeProcess(tmp_path / "log", "smollm2", flags) as server:
        server.wait_for_line("is admitted", count=2)
        asyncio.run(scenario(server))
