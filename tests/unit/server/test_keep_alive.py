"""When a silent stream says that it lives, on a clock that the test owns."""

import asyncio

import pytest

from roundhouse.server.keep_alive import KEEP_ALIVE, kept_alive
from tests.support.fake_time_loop import run


class Client:
    """Body parts with the seconds since the start at which they came. `send` takes `stall_s`."""

    def __init__(self, stall_s: float = 0.0) -> None:
        self.parts: list[tuple[float, bytes]] = []
        self._stall_s = stall_s
        self._start = asyncio.get_running_loop().time()

    async def send(self, message) -> None:
        assert message["more_body"]
        self.parts.append((asyncio.get_running_loop().time() - self._start, message["body"]))
        await asyncio.sleep(self._stall_s)


def test_a_silent_stream_gets_a_comment_at_each_interval() -> None:
    async def main():
        client = Client()
        async with kept_alive(client.send, interval_s=10):
            await asyncio.sleep(35)
        await asyncio.sleep(100)
        return client.parts

    assert run(main()) == [(10, KEEP_ALIVE), (20, KEEP_ALIVE), (30, KEEP_ALIVE)]


def test_what_is_written_puts_the_comment_off() -> None:
    async def main():
        client = Client()
        async with kept_alive(client.send, interval_s=10) as write:
            for _ in range(5):
                await asyncio.sleep(6)
                await write(b"data")
            await asyncio.sleep(11)
        return client.parts

    assert run(main()) == [*((6 * (i + 1), b"data") for i in range(5)), (40, KEEP_ALIVE)]


def test_a_client_that_does_not_read_is_sent_nothing_more() -> None:
    async def main():
        client = Client(stall_s=100)
        async with kept_alive(client.send, interval_s=10) as write:
            await write(b"data")
        return client.parts

    parts = run(main())
    assert parts[0] == (0, b"data")
    assert len(parts) <= 2


def test_a_client_that_left_ends_nothing_but_its_own_stream() -> None:
    async def main():
        async def send(message) -> None:
            raise OSError("the client left")

        async with kept_alive(send, interval_s=1) as write:
            await asyncio.sleep(5)
            with pytest.raises(OSError, match="left"):
                await write(b"data")

    run(main())
