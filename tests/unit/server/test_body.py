import asyncio
import threading
from typing import Any

import msgspec
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from roundhouse.protocol.errors import CapacityError, InvalidRequest, RequestTooLarge
from roundhouse.server.body import BodyBudget, BodyReader, read_body
from roundhouse.server.state import ServerSettings

LIMIT = 10
JSON = [(b"content-type", b"application/json")]


def read(pieces: list[bytes], headers: dict[str, str], *, leaves: bool = False) -> tuple[bytes, int]:
    """The body and the number of pieces that were not asked for."""
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": leaves or i < len(pieces) - 1}
        for i, piece in enumerate(pieces)
    ]
    if leaves:
        messages.append({"type": "http.disconnect"})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    raw = [(name.encode(), value.encode()) for name, value in ({"content-type": "application/json"} | headers).items()]
    request = Request({"type": "http", "headers": raw}, receive)
    try:
        return asyncio.run(read_one(request)), len(messages)
    except Exception as error:
        error.add_note(str(len(messages)))
        raise


async def read_one(
    request: Request, budget: BodyBudget | None = None, max_idle_s: float = 10.0, max_s: float = 10.0
) -> bytes:
    with (budget or BodyBudget(LIMIT)).share() as share:
        return await read_body(request, LIMIT, max_idle_s, max_s, share)


def test_a_body_that_never_stops_and_never_ends_is_given_up() -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"", "more_body": True}

    request = Request({"type": "http", "headers": JSON}, receive)
    with pytest.raises(HTTPException) as caught:
        asyncio.run(read_one(request, max_s=0.01))
    assert (caught.value.status_code, caught.value.detail) == (408, "the body was not whole after 0.01 s")


def test_the_body_is_all_its_pieces() -> None:
    assert read([b"ab", b"", b"cd"], {}) == (b"abcd", 0)


def test_a_body_of_exactly_the_limit_is_read() -> None:
    assert read([b"x" * LIMIT], {"content-length": str(LIMIT)}) == (b"x" * LIMIT, 0)


def test_a_declared_size_is_refused_before_a_byte_is_read() -> None:
    with pytest.raises(RequestTooLarge) as caught:
        read([b"x" * 11], {"content-length": "11"})
    assert caught.value.__notes__ == ["1"]


@pytest.mark.parametrize("declared", [{}, {"content-length": "3"}, {"content-length": "-1"}, {"content-length": "x"}])
def test_the_size_is_counted_while_it_arrives(declared: dict[str, str]) -> None:
    with pytest.raises(RequestTooLarge) as caught:
        read([b"x" * 6, b"x" * 6, b"x" * 6], declared)
    assert caught.value.__notes__ == ["1"]


def test_a_client_that_leaves_in_the_middle() -> None:
    with pytest.raises(ClientDisconnect):
        read([b"x"], {}, leaves=True)


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_another_content_type_is_refused(content_type: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read([b"{}"], {"content-type": content_type})
    assert caught.value.param == "content-type"


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
def test_json_by_any_of_its_names_is_read(content_type: str) -> None:
    assert read([b"{}"], {"content-type": content_type}) == (b"{}", 0)


class Upload:
    """A client that sends `first` and nothing more until it is told."""

    def __init__(self, first: bytes) -> None:
        self.request = Request({"type": "http", "headers": JSON}, self._receive)
        self.is_waiting = asyncio.Event()
        self.rest: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._first: bytes | None = first

    async def _receive(self) -> dict[str, Any]:
        if self._first is not None:
            piece, self._first = self._first, None
            return {"type": "http.request", "body": piece, "more_body": True}
        self.is_waiting.set()
        return {"type": "http.request", "body": await self.rest, "more_body": False}


def test_a_body_that_stops_arriving_is_given_up() -> None:
    async def scenario() -> None:
        budget = BodyBudget(LIMIT)
        with pytest.raises(HTTPException) as caught:
            await read_one(Upload(b"xx").request, budget, max_idle_s=0.01)
        assert (caught.value.status_code, caught.value.headers) == (
            408,
            {"connection": "close", "x-should-retry": "true"},
        )
        assert budget.num_bytes == 0

    asyncio.run(scenario())


def test_all_bodies_share_one_budget() -> None:
    async def scenario() -> None:
        reader = BodyReader(ServerSettings(("m",), max_body_bytes_in_flight=LIMIT))
        decoder = msgspec.json.Decoder(list[int])
        first, second, third = Upload(b"[1,2,3"), Upload(b"[4,5,6"), Upload(b"[7")
        reading = asyncio.create_task(reader.read(first.request, decoder))
        await first.is_waiting.wait()
        with pytest.raises(CapacityError):
            await reader.read(second.request, decoder)
        assert reader.budget.num_bytes == 6
        # What was refused is not held against the next one.
        third.rest.set_result(b"]")
        assert await reader.read(third.request, decoder) == [7]
        first.rest.set_result(b"]")
        assert (await reading, reader.budget.num_bytes) == ([1, 2, 3], 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(("num_bytes", "is_on_loop"), [(256 * 2**10, True), (256 * 2**10 + 1, False)])
def test_a_large_body_is_decoded_in_a_thread(num_bytes: int, is_on_loop: bool) -> None:
    async def scenario() -> list[bool]:
        reader = BodyReader(ServerSettings(("m",)))
        threads: list[bool] = []

        def note(kind: type, value: Any) -> Any:
            threads.append(threading.current_thread() is threading.main_thread())
            return kind()

        upload = Upload(b" " * (num_bytes - 2))
        upload.rest.set_result(b"{}")
        await reader.read(upload.request, msgspec.json.Decoder(Opaque, dec_hook=note))
        return threads

    assert asyncio.run(scenario()) == [is_on_loop]


class Opaque:
    """What msgspec asks the decoder's hook about."""
