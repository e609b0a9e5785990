import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from roundhouse.protocol.errors import InvalidRequest, RequestTooLarge
from roundhouse.server.body import read_body

LIMIT = 10


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
        return asyncio.run(read_body(request, LIMIT)), len(messages)
    except Exception as error:
        error.add_note(str(len(messages)))
        raise


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
