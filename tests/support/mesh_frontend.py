"""A frontend process: the real client, one request after another. `python mesh_frontend.py ADDRESS COUNT PREFIX`.

Prints a line for each request: its tokens, or how it ended. `ready` comes first.
"""

from __future__ import annotations

import asyncio
import sys

from roundhouse.frontend.mp_client import AsyncMPClient
from tests.support.mesh import request


async def main(address: str, count: int, prefix: str) -> None:
    client = AsyncMPClient(address)
    await client.wait_for_engine()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for number in range(count):
        await client.add_request_async(request(f"{prefix}{number}", prompt=[number + 1], max_tokens=3))
        tokens: list[int] = []
        finished = False
        while not finished:
            for output in (await client.get_output_async()).outputs:
                assert output.request_id == f"{prefix}{number}", output
                tokens += output.new_token_ids
                finished = output.finished
        sys.stdout.write(f"{tokens}\n")
        sys.stdout.flush()
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
