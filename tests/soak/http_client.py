"""As much of an HTTP/1.1 client as a soak needs: one connection, requests one after the other, bodies chunk by chunk.

It shares two cores with what it loads, so it is as little as will do; and it sends halves of requests, which no real
client would.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

from tests.soak.tally import Unexpected


class ServerLeft(Unexpected):
    """The server closed or reset the connection in the middle of an answer."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Head:
    """headers: names in lower case."""

    status: int
    headers: dict[str, str]


class Connection:
    """Closed with the block; `reset` closes with RST, as a client does that dies."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_open(self) -> bool:
        return self._writer is not None and not self._writer.is_closing()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    async def open(self) -> None:
        try:
            self._reader, self._writer = await asyncio.open_connection(self._address.host, self._address.port)
        except OSError as error:
            raise ServerLeft(f"no connection: {error}") from error

    async def send(self, data: bytes) -> None:
        """A server that answers early and closes is no error here: its answer says what happened."""
        assert self._writer is not None
        self._writer.write(data)
        try:
            await self._writer.drain()
        except ConnectionError:
            pass

    async def read_head(self) -> Head:
        """Raises `ServerLeft`."""
        lines = (await self._until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = (line.partition(":") for line in lines[1:] if line)
        return Head(int(lines[0].split(" ")[1]), {name.lower(): value.strip() for name, _, value in headers})

    async def read_body(self, head: Head) -> bytes:
        """Raises `ServerLeft`."""
        if head.headers.get("transfer-encoding") == "chunked":
            return b"".join([chunk async for chunk in self.chunks()])
        return await self._exactly(int(head.headers.get("content-length", "0")))

    async def chunks(self) -> AsyncIterator[bytes]:
        """The parts of a chunked body, to its proper end. Raises `ServerLeft`."""
        while size := int(await self._until(b"\r\n"), 16):
            yield (await self._exactly(size + 2))[:-2]
        await self._until(b"\r\n")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def reset(self) -> None:
        if self._writer is not None:
            self._writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            self._writer.transport.abort()

    async def _until(self, separator: bytes) -> bytes:
        assert self._reader is not None
        try:
            return await self._reader.readuntil(separator)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ServerLeft(f"the server closed the connection: {error}") from error

    async def _exactly(self, num_bytes: int) -> bytes:
        assert self._reader is not None
        try:
            return await self._reader.readexactly(num_bytes)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ServerLeft(f"the server closed the connection: {error}") from error


def post(address: Address, path: str, body: bytes, request_id: str) -> bytes:
    """A whole request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: {address.host}:{address.port}\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def get_text(address: Address, path: str) -> str:
    """The body of a GET by a connection of its own. Raises `Unexpected` when it is not 200."""
    async with Connection(address) as connection:
        await connection.send(f"GET {path} HTTP/1.1\r\nHost: {address.host}\r\nConnection: close\r\n\r\n".encode())
        head = await connection.read_head()
        body = await connection.read_body(head)
    if head.status != 200:
        raise Unexpected(f"{path} answered {head.status}")
    return body.decode()
