"""Raw bytes of a connection → `BoundedHttpProtocol` over a transport and a clock of ours → an application that takes
every body.

Whatever the bytes, and however they are split: no exception, an answer of a status that the protocol has, no more of
them than requests and one refusal, the same requests read from one piece as from many, and a connection that ends by
itself, unless it waits for a body.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from roundhouse.cli.http_protocol import BoundedHttpProtocol
from roundhouse.protocol import limits
from tests.fuzz.mutation import mutate_bytes, mutate_parcel
from tests.fuzz.parcel import pack, unpack
from tests.fuzz.target import Target, expect
from tests.support import fake_time_loop

STATUSES = frozenset({100, 200, 400, 408, 431})
BODY = b'{"ok": true}'
KEEP_ALIVE_S = 75
ENDS_AFTER_S = KEEP_ALIVE_S + limits.MAX_HEAD_S + limits.MAX_LEFTOVER_S + 1
MAX_PIECES = 64
TOKENS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b" ", b":", b"0\r\n\r\n", b"5;a=b\r\n", b"GET / HTTP/1.1\r\n\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 05\r\n", b"Transfer-Encoding: chunked\r\n", b"Trailer: a\r\n"),
    *(b"Upgrade: x\r\nConnection: upgrade\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"CONNECT "),
)


@dataclass(slots=True)
class Seen:
    """requests: method, path and body of those that came whole. num_begun: those that reached the application."""

    requests: list[tuple[str, str, bytes]] = field(default_factory=list[tuple[str, str, bytes]])
    num_begun: int = 0
    failures: list[str] = field(default_factory=list[str])
    written: bytearray = field(default_factory=bytearray)
    num_body_bytes: int = 0

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.num_begun += 1
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            self.num_body_bytes += len(message["body"])
            more = message["more_body"]
        self.requests.append((scope["method"], scope["path"], body))
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": head})
            await send({"type": "http.response.body", "body": BODY})
        except Exception as error:
            self.failures.append(repr(error))


class PlainTransport(asyncio.Transport):
    """Keeps what is written; tells the protocol of its end as an event loop does."""

    def __init__(self, seen: Seen, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.protocol: Any = None
        self.is_paused = False
        self._seen = seen
        self._loop = loop
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        expect(not self._is_closing, "something is written behind the end")
        self._seen.written += data

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def run(data: bytes) -> bool:
    """Parts: the pieces in which the bytes come."""
    pieces = unpack(data)[:MAX_PIECES]
    split, whole = (fake_time_loop.run(_serve(parts)) for parts in (pieces, [b"".join(pieces)]))
    shorter, longer = sorted((split.requests, whole.requests), key=len)
    expect(longer[: len(shorter)] == shorter, f"read as {split.requests!r} in pieces, as {whole.requests!r} at once")
    for seen in (split, whole):
        statuses = _statuses(seen)
        expect(STATUSES.issuperset(statuses), f"answered {statuses}")
        finals = [status for status in statuses if status != 100]
        expect(len(finals) <= seen.num_begun + 1, f"{len(finals)} answers to {seen.num_begun} requests")
        expect(finals.count(200) <= len(seen.requests), "an answer to no request")
        expect(not seen.failures, f"{seen.failures}")
        expect(seen.num_body_bytes <= sum(map(len, pieces)), "bodies of more bytes than came")
    return bool(split.requests) and set(_statuses(split)) <= {100, 200}


def _statuses(seen: Seen) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", seen.written)]


async def _serve(pieces: Sequence[bytes]) -> Seen:
    seen, loop, server_state = Seen(), asyncio.get_running_loop(), ServerState()
    transport = PlainTransport(seen, loop)
    protocol = BoundedHttpProtocol(_config(), server_state, {}, loop)
    protocol.app = seen.app
    transport.protocol = protocol
    protocol.connection_made(transport)
    for piece in filter(None, pieces):
        await _turns()
        if transport.is_closing() or transport.is_paused:
            break  # a socket hands nothing on then
        protocol.data_received(piece)
        num_header_bytes = sum(len(name) + len(value) for name, value in protocol.headers or ())
        expect(num_header_bytes <= limits.MAX_HEAD_BYTES, f"{num_header_bytes} bytes of headers are kept")
    await asyncio.sleep(ENDS_AFTER_S)
    waits_for_body = len(seen.requests) < seen.num_begun
    expect(transport.is_closing() or waits_for_body, "the connection does not end")
    if not transport.is_closing():
        protocol.eof_received()
        transport.close()
    await _turns()
    expect(not server_state.connections and not server_state.tasks, "something is left of the connection")
    return seen


async def _turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


@cache
def _config() -> uvicorn.Config:
    async def nobody(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("each connection has its own application")

    config = uvicorn.Config(
        nobody, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=KEEP_ALIVE_S, ws="none"
    )
    config.load()
    return config


def mutate(parcel: bytes, rng: Random) -> bytes:
    return mutate_parcel(parcel, rng, _mutate_piece)


def _mutate_piece(place: int, piece: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(piece) + 1)
    match rng.randrange(4):
        case 0:
            return mutate_bytes(piece, rng)
        case 1:
            return piece[:at] + rng.choice(TOKENS) * rng.choice((1, 1, 1, 300)) + piece[at:]
        case 2 if piece.count(b"\r\n") > 1:
            lines = piece.split(b"\r\n")
            rng.shuffle(lines)
            return b"\r\n".join(lines)
        case _:
            line = piece.find(b"\r\n", at)
            return piece[: line + 2] + rng.choice(TOKENS) + piece[line + 2 :]


def _seeds() -> Iterable[tuple[str, bytes]]:
    host = b"Host: a\r\n"
    get = b"GET /v1/models HTTP/1.1\r\n" + host
    post = b"POST /v1/completions HTTP/1.1\r\n" + host
    chunked = post + b"Transfer-Encoding: chunked\r\n\r\n"
    upgrade = b"Connection: upgrade\r\nUpgrade: websocket\r\n"
    yield "get", pack([get + b"\r\n"])
    yield "get_closed", pack([get + b"Connection: close\r\n\r\n"])
    yield "http10", pack([b"GET / HTTP/1.0\r\n\r\n"])
    yield "query", pack([b"GET http://b/%7e?a=%00 HTTP/1.1\r\n" + host + b"\r\n"])
    yield "post", pack([post + b"Content-Length: 5\r\n\r\n", b"he", b"llo"])
    yield "split_head", pack([bytes([byte]) for byte in post[:40]] + [post[40:] + b"Content-Length: 0\r\n\r\n"])
    yield "chunked", pack([chunked, b"5;x=y\r\nhel", b"lo\r\n0\r\n", b"Trailer: t\r\n\r\n"])
    yield "pipelined", pack([get + b"\r\n" + post + b"Content-Length: 2\r\n\r\nhi", get + b"\r\n"])
    yield "upgrade", pack([get + upgrade + b"\r\n"])
    yield "upgrade_body", pack([post + upgrade + b"Content-Length: 18\r\n\r\n" + b"GET / HTTP/1.1\r\n\r\n"])
    yield "upgrade_chunked", pack([post + upgrade + b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\nhi\r\n0\r\n\r\n"])
    yield "expect", pack([post + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", b"hi"])
    yield "many_headers", pack([get + b"a: b\r\n" * (limits.MAX_HEADERS - 1) + b"\r\n"])


HTTP_BYTES = Target("http_bytes", run, mutate, _seeds)
