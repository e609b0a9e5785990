"""The clients: constant streams that behave, and those that do not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from tests.soak.answers import check_stream, check_whole
from tests.soak.http_client import Address, Connection, post
from tests.soak.misbehaving import Manner, Misbehaviour
from tests.soak.mix import Request
from tests.soak.tally import Failure, Outcome, Tally, Unexpected

ANSWER_WITHIN_S = 600.0
"""A client that behaves waits so long for its whole answer: long enough for a machine that others keep busy."""

PAUSE_AFTER_FAILURE_S = 1.0
SLOW_RECEIVE_BUFFER_BYTES = 2048
SLOW_READ_BYTES = 8


class Clients:
    """All of one load. `now` counts from its start."""

    def __init__(self, address: Address, tally: Tally, now: Callable[[], float]) -> None:
        self._address = address
        self._tally = tally
        self._now = now
        self._num_sent = 0

    async def stream(self, requests: Iterator[Request]) -> None:
        """One request after the other, to their end or until cancelled."""
        connection = Connection(self._address)
        try:
            for request in requests:
                if not connection.is_open:
                    connection = Connection(self._address)
                is_whole = await self._judged(request.kind, partial(self._ask, connection, request))
                if not (is_whole and request.keeps_alive):
                    connection.close()
                if not is_whole:
                    await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
        finally:
            connection.close()

    async def misbehave(self, misbehaviour: Misbehaviour) -> None:
        match misbehaviour.manner:
            case Manner.LEAVES_MID_STREAM:
                action = self._leave_mid_stream
            case Manner.VANISHES:
                action = self._vanish
            case Manner.COMES_BACK:
                action = self._come_back
            case Manner.HALF_A_HEAD:
                action = self._send_half_a_head
            case Manner.HALF_A_BODY:
                action = self._send_half_a_body
            case Manner.STALLS:
                action = self._stall
            case Manner.READS_SLOWLY:
                action = self._read_slowly
            case Manner.ASKS_BADLY:
                action = self._ask_badly
        await self._judged(misbehaviour.kind, partial(action, misbehaviour))

    async def _judged(self, kind: str, act: Callable[[str], Awaitable[None]]) -> bool:
        """Counts what becomes of `act`, which gets a request id. False when it ended wrongly."""
        self._num_sent += 1
        request_id = f"soak-{self._num_sent}"
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                await act(request_id)
        except asyncio.CancelledError:
            self._tally.count(kind, Outcome.CUT)
            raise
        except TimeoutError:
            what = f"no whole answer within {ANSWER_WITHIN_S:g} s"
        except Unexpected as error:
            what = str(error)
        else:
            self._tally.count(kind, Outcome.AS_MEANT)
            return True
        self._tally.fail(Failure(kind, request_id, round(self._now(), 1), what))
        return False

    async def _ask(self, connection: Connection, request: Request, request_id: str) -> None:
        """Raises `Unexpected` unless a whole answer comes."""
        if not connection.is_open:
            await connection.open()
        await connection.send(post(self._address, request.path, request.encode(), request_id))
        head = await connection.read_head()
        self._tally.statuses[head.status] += 1
        if head.status != 200:
            raise Unexpected(f"status {head.status}: {(await connection.read_body(head))[:300]!r}")
        if request.is_stream:
            answered = check_stream(request, [chunk async for chunk in connection.chunks()])
        else:
            answered = check_whole(request, await connection.read_body(head))
        self._tally.finish_reasons.update(answered.finish_reasons)
        self._tally.num_tokens += answered.num_tokens

    async def _leave_mid_stream(self, what: Misbehaviour, request_id: str) -> None:
        async with Connection(self._address) as connection:
            await connection.send(post(self._address, what.request.path, what.encode(), request_id))
            head = await connection.read_head()
            self._tally.statuses[head.status] += 1
            if head.status != 200:
                raise Unexpected(f"status {head.status}")
            try:
                async with asyncio.timeout(what.after_s):
                    async for _ in connection.chunks():
                        pass
            except TimeoutError:
                pass
            self._leave(connection, what)

    async def _vanish(self, what: Misbehaviour, request_id: str) -> None:
        async with Connection(self._address) as connection:
            await connection.send(post(self._address, what.request.path, what.encode(), request_id))
            await asyncio.sleep(what.after_s)
            self._leave(connection, what)

    async def _come_back(self, what: Misbehaviour, request_id: str) -> None:
        """The second request has the first one's id, and must not notice it."""
        await self._vanish(what, request_id)
        async with Connection(self._address) as connection:
            await self._ask(connection, what.request, request_id)

    async def _send_half_a_head(self, what: Misbehaviour, request_id: str) -> None:
        async with Connection(self._address) as connection:
            await connection.send(post(self._address, what.request.path, b"", request_id)[:60])
            await asyncio.sleep(what.after_s)
            self._leave(connection, what)

    async def _send_half_a_body(self, what: Misbehaviour, request_id: str) -> None:
        async with Connection(self._address) as connection:
            await connection.send(self._without_its_tail(what, request_id))
            await asyncio.sleep(what.after_s)
            self._leave(connection, what)

    async def _stall(self, what: Misbehaviour, request_id: str) -> None:
        async with Connection(self._address) as connection:
            await connection.send(self._without_its_tail(what, request_id))
            await self._expect_refusal(connection, what)

    async def _read_slowly(self, what: Misbehaviour, request_id: str) -> None:
        """Straight from a socket: a stream reader would read ahead."""
        loop = asyncio.get_running_loop()
        reader = socket.socket(socket.AF_INET6 if ":" in self._address.host else socket.AF_INET)
        with reader:
            reader.setblocking(False)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_RECEIVE_BUFFER_BYTES)
            await loop.sock_connect(reader, (self._address.host, self._address.port))
            await loop.sock_sendall(reader, post(self._address, what.request.path, what.encode(), request_id))
            vanishes_at = self._now() + what.after_s
            while self._now() < vanishes_at:
                try:
                    if not await loop.sock_recv(reader, SLOW_READ_BYTES):
                        raise Unexpected("the server closed the connection of a slow reader")
                except ConnectionError as error:
                    raise Unexpected(f"the server reset the connection of a slow reader: {error}") from error
                await asyncio.sleep(1)

    async def _ask_badly(self, what: Misbehaviour, request_id: str) -> None:
        """A refusal leaves the connection usable, unless it came before the whole body had."""
        async with Connection(self._address) as connection:
            await connection.send(post(self._address, what.request.path, what.encode(), request_id))
            await self._expect_refusal(connection, what)
            if what.status != 413:
                await self._ask(connection, what.request, request_id)

    async def _expect_refusal(self, connection: Connection, what: Misbehaviour) -> None:
        head = await connection.read_head()
        self._tally.statuses[head.status] += 1
        body = await connection.read_body(head)
        if head.status != what.status or b'"error"' not in body:
            raise Unexpected(f"status {head.status} instead of {what.status}: {body[:300]!r}")

    def _without_its_tail(self, what: Misbehaviour, request_id: str) -> bytes:
        whole = post(self._address, what.request.path, what.encode(), request_id)
        return whole[: len(whole) - len(what.encode()) // 2 - 1]

    def _leave(self, connection: Connection, what: Misbehaviour) -> None:
        if what.by_reset:
            connection.reset()
        else:
            connection.close()
