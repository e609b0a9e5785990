"""A request's body: counted while it arrives, alone and together with all others, and decoded.

A client may send slowly, but not stop and not for ever, and what all clients have sent and nobody has decoded yet has
one bound: that is the memory that requests can hold before anything is known of them. A large body is decoded in a
thread. msgspec holds the interpreter's lock meanwhile, so what bounds a stall of the event loop is how little `schema`
builds of a body.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from roundhouse.protocol.errors import CapacityError, InvalidRequest, RequestTooLarge
from roundhouse.server.decode import decode
from roundhouse.server.state import ServerSettings
from roundhouse.server.unserved import UnservedFields

T = TypeVar("T")

MAX_DECODED_ON_LOOP_BYTES = 256 * 2**10


class BodyBudget:
    """The bytes of bodies in flight. `num_bytes` is 0 when no request is being read."""

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """One request's part, which it gives back when the block ends."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.num_bytes -= share.num_bytes

    def take(self, num_bytes: int) -> None:
        """Raises `CapacityError`, and then nothing was taken."""
        if self.num_bytes + num_bytes > self._max_bytes:
            raise CapacityError("the server is reading as many request bodies as it has memory for")
        self.num_bytes += num_bytes


class BodyShare:
    """What one request has taken of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self.num_bytes = 0
        self._budget = budget

    def take(self, num_bytes: int) -> None:
        """Raises `CapacityError`."""
        self._budget.take(num_bytes)
        self.num_bytes += num_bytes


class BodyReader:
    """Reads the bodies of one app's requests."""

    def __init__(self, settings: ServerSettings) -> None:
        self.budget = BodyBudget(settings.max_body_bytes_in_flight)
        self._max_bytes = settings.max_body_bytes
        self._max_idle_s = settings.max_body_idle_s
        self._max_s = settings.max_body_s

    async def read(
        self, request: Request, decoder: msgspec.json.Decoder[T], unserved: UnservedFields | None = None
    ) -> T:
        """Raises what `read_body`, `decode` and `UnservedFields.refuse` raise."""
        with self.budget.share() as share:
            raw = await read_body(request, self._max_bytes, self._max_idle_s, self._max_s, share)
            if len(raw) <= MAX_DECODED_ON_LOOP_BYTES:
                return _decoded(raw, decoder, unserved)
            return await asyncio.to_thread(_decoded, raw, decoder, unserved)


async def read_body(request: Request, max_bytes: int, max_idle_s: float, max_s: float, share: BodyShare) -> bytes:
    """The whole body. Raises `InvalidRequest` for another content type than JSON, `RequestTooLarge` as soon as it is
    too large (whatever Content-Length says or fails to say), `HTTPException` 408 when nothing comes for `max_idle_s` or
    it is not whole after `max_s`, `CapacityError` when `share` has no room, `ClientDisconnect` when the client leaves.
    """
    _check_content_type(request.headers.get("content-type"))
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max_s
    while True:
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + max_idle_s)):
                message = await request.receive()
        except TimeoutError:
            idle, late = f"no byte of the body came for {max_idle_s:g} s", f"the body was not whole after {max_s:g} s"
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT,
                late if loop.time() >= deadline else idle,
                {"connection": "close", "x-should-retry": "true"},
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        share.take(len(chunk))
        body += chunk
        if not message.get("more_body", False):
            return bytes(body)


def _decoded(raw: bytes, decoder: msgspec.json.Decoder[T], unserved: UnservedFields | None) -> T:
    body = decode(decoder, raw)
    if unserved is not None:
        unserved.refuse(raw)
    return body


def _check_content_type(content_type: str | None) -> None:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    is_json = media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    )
    if not is_json:
        raise InvalidRequest("The request needs the header Content-Type: application/json", param="content-type")


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is larger than {max_bytes} bytes")
