"""A frontend holds no more objects after hundreds of requests than after a few: over real sockets, of every ending.

What the system says of a process's memory moves by whole arenas of Python's allocator; a forgotten entry of a hundred
bytes for each request hides in that for an hour. The count of blocks that the allocator has given out hides nothing.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundhouse.frontend.async_llm import AsyncLLM
from roundhouse.frontend.config import FrontendConfig
from roundhouse.frontend.mp_client import AsyncMPClient
from roundhouse.server.app import build_app
from tests.support.scripted_llm import MODEL, SETTINGS, server_state
from tests.support.small_tokenizers import byte_level

ENGINE = Path(__file__).parents[1] / "support/mesh_engine.py"
TOKENIZER = byte_level()
ROUND = 12
WARM_UP_ROUNDS, ROUNDS = 25, 100
BLOCKS_PER_REQUEST = 0.5
"""Below one object for each. The count moves by some 250 without a trend: free lists, timers of the loop."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    """The address at which an engine that echoes asks for a frontend."""
    address = f"ipc://{tmp_path}/mesh"
    process = subprocess.Popen([sys.executable, str(ENGINE), json.dumps({"frontends": [address], "identity": "e"})])
    yield address
    process.kill()
    process.wait()


async def one_of_each(http: httpx.AsyncClient, number: int) -> None:
    """`ROUND` requests: whole, streamed, several choices, stopped by a string, refused, and left by their clients."""
    common = {"model": MODEL, "max_tokens": 6}
    text = {"prompt": f"prompt number {number}"}
    bodies: list[dict[str, Any]] = [
        common | text,
        common | text | {"stream": True},
        common | text | {"n": 3, "temperature": 1},
        common | text | {"stop": ["pro"]},
        common | text | {"stream": True, "stream_options": {"include_usage": True}, "stop": ["mpt"]},
        common | {"messages": [{"role": "user", "content": f"hello {number}"}]},
        common | {"messages": [{"role": "user", "content": f"hello {number}"}], "stream": True},
        common | text | {"temperature": 9},
        common | text | {"model": "another"},
        common | {"prompt": "x" * 5000},
    ]
    statuses = [(await _post(http, body)).status_code for body in bodies]
    assert statuses == [200] * 7 + [400, 404, 400]
    for delay_s in (0.0, 0.002):
        leaver = asyncio.create_task(_post(http, common | text | {"max_tokens": 40}))
        await asyncio.sleep(delay_s)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)


async def _post(http: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
    return await http.post("/v1/chat/completions" if "messages" in body else "/v1/completions", json=body)


async def blocks_at_rest(client: AsyncMPClient) -> int:
    while any(view.num_inflight for view in client.engines()):  # noqa: ASYNC110 - the mesh says nothing when it is idle
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    gc.collect()
    return sys.getallocatedblocks()


def test_no_object_is_left_of_a_request(engine: str) -> None:
    async def main() -> float:
        client = AsyncMPClient(engine)
        llm: Any = AsyncLLM(FrontendConfig(), TOKENIZER, client)
        client.start()
        await client.wait_for_engine()
        transport = httpx.ASGITransport(build_app(server_state(llm, tokenizer=TOKENIZER), SETTINGS))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            for number in range(WARM_UP_ROUNDS):
                await one_of_each(http, number)
            before = await blocks_at_rest(client)
            for number in range(ROUNDS):
                await one_of_each(http, WARM_UP_ROUNDS + number)
            after = await blocks_at_rest(client)
        llm.shutdown()
        return (after - before) / (ROUND * ROUNDS)

    assert asyncio.run(main()) < BLOCKS_PER_REQUEST
