"""Drives an ASGI application without a socket: one request in, one answer out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

JSON_HEADERS = {"content-type": "application/json"}


@dataclass(frozen=True)
class Answer:
    """`status` is None when nothing was answered."""

    status: int | None
    headers: dict[str, str]
    writes: list[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.writes)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def call(
    app: Any,
    method: str,
    path: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    *,
    chunk_bytes: int = 2**16,
    leaves: asyncio.Event | None = None,
) -> Answer:
    """The body arrives in pieces of `chunk_bytes`; the client leaves when `leaves` is set, and never without one."""
    pieces = [body[i : i + chunk_bytes] for i in range(0, len(body), chunk_bytes)] or [b""]
    arriving = [
        {"type": "http.request", "body": piece, "more_body": i < len(pieces) - 1} for i, piece in enumerate(pieces)
    ]
    started: list[dict[str, Any]] = []
    writes: list[bytes] = []

    async def receive() -> dict[str, Any]:
        if arriving:
            return arriving.pop(0)
        await (leaves or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            started.append(message)
        elif message["type"] == "http.response.body" and message.get("body"):
            writes.append(message["body"])

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    if not started:
        return Answer(None, {}, writes)
    (start,) = started
    decoded = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], decoded, writes)


def post(app: Any, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
    """One POST; `body` as bytes, or anything that JSON can say."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return asyncio.run(call(app, "POST", path, raw, JSON_HEADERS | (headers or {})))


def get(app: Any, path: str, headers: dict[str, str] | None = None) -> Answer:
    return asyncio.run(call(app, "GET", path, headers=headers))
