"""uvicorn's HTTP/1.1 on httptools, with bounds where it has none, and its own refusals in our shape.

llhttp keeps a header whose end has not come and tells nobody, so two things are counted: what the parser has told of a
message's head, and the bytes it was fed since it last told anything. Over either bound the connection ends with 431.

uvicorn waits for ever for three things that a client owes, and each has a deadline here: the rest of a head, the rest
of a body whose request is answered, and that what was written is read. (A body that nobody has answered is
`server.body`'s to wait for.)

An upgrade is not served. httptools takes what follows the head of one for another protocol, body or not, and would read
the body as the next request: a second parser is told the body's length and reads on.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from roundhouse.cli.deadline import Deadline
from roundhouse.protocol import limits
from roundhouse.server.errors import error_json

log = logging.getLogger(__name__)


class _HeadTooLarge(Exception):
    """Out of a callback of the parser, which stops there."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    max_head_s = limits.MAX_HEAD_S
    max_leftover_s = limits.MAX_LEFTOVER_S
    max_write_stall_s = limits.MAX_WRITE_STALL_S

    _running: RequestResponseCycle | None = None
    _num_head_bytes = 0
    _num_silent_bytes = 0
    _is_in_head = False
    _is_in_body = False
    _is_repeating_head = False

    def __init__(self, *args: Any, max_connections: int = limits.MAX_HTTP_CONNECTIONS, **kwargs: Any) -> None:
        """max_connections: of the server; one that comes over it is told so and closed. The others: uvicorn's."""
        super().__init__(*args, **kwargs)
        self._max_connections = max_connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head_deadline = Deadline(self.loop, self.max_head_s, self._on_slow_head)
        self._leftover_deadline = Deadline(self.loop, self.max_leftover_s, self._close)
        self._write_deadline = Deadline(self.loop, self.max_write_stall_s, self._on_write_stall)
        super().connection_made(transport)
        if len(self.connections) > self._max_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "This server has as many connections as it may have")
        else:
            self._head_deadline.start()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._num_silent_bytes += len(data)
        self._feed(data)
        is_idle = not self._is_in_body and (self.cycle is None or self.cycle.response_complete)
        if self._is_in_head or is_idle:
            self._head_deadline.start()

    def _feed(self, data: bytes) -> None:
        assert self.parser is not None
        try:
            while (num_parsed := self._feed_to_upgrade(data)) is not None:
                # The request is answered as if it had not asked, as RFC 9110 has it.
                log.debug("%s asked for an upgrade, which is ignored", self.client)
                self._repeat_head()
                data = data[num_parsed:]
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, _HeadTooLarge):
                self._refuse_head()
            else:
                self.send_400_response("The request line cannot be read")
        except httptools.HttpParserError as error:
            self.send_400_response(f"This is no HTTP/1.1 request: {error}")
        else:
            if self._num_silent_bytes > limits.MAX_HEAD_BYTES:
                self._refuse_head()

    def _feed_to_upgrade(self, data: bytes) -> int | None:
        """How many bytes were parsed when a head came that asks for an upgrade; None when all were and none did."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return upgrade.args[0]
        return None

    def _repeat_head(self) -> None:
        """A new parser is told how the body is framed, which the first one has checked, and reads on from there."""
        framing = [
            name + b": " + value + b"\r\n"
            for name, value in self.headers
            if name in (b"content-length", b"transfer-encoding")
        ]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._is_repeating_head = True
        self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(framing) + b"\r\n")

    def eof_received(self) -> None:
        """A client that closes its half has left: the other half is closed at once, and no write may follow."""
        self._tell_that_it_left()
        self._write_deadline.start()

    def connection_lost(self, exc: Exception | None) -> None:
        for deadline in (self._head_deadline, self._leftover_deadline, self._write_deadline):
            deadline.stop()
        self._tell_that_it_left()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_deadline.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        # A transport that closes waits for its last bytes to be taken, as long as it takes.
        if not self.transport.is_closing():
            self._write_deadline.stop()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._write_deadline.start()

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def on_message_begin(self) -> None:
        self._num_head_bytes = self._num_silent_bytes = 0
        if not self._is_repeating_head:
            self._is_in_head = True
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_repeating_head:
            self._count(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers come here too, and count as the head does."""
        if self._is_repeating_head:
            return
        self._count(len(name) + len(value))
        if len(self.headers) >= limits.MAX_HEADERS:
            raise _HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._num_silent_bytes = 0
        self._is_in_head, self._is_in_body = False, True
        self._head_deadline.stop()
        if self._is_repeating_head:
            self._is_repeating_head = False
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_silent_bytes = 0
        if self.parser.should_upgrade():
            return  # the second parser knows better
        self._is_in_body = False
        self._leftover_deadline.stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._write_deadline.start()
        elif self._is_in_body and self.cycle.response_complete:
            self._leftover_deadline.start()

    def _on_slow_head(self) -> None:
        if self._running is not None and not self._running.response_complete:
            # A request of this connection is being answered, and what comes behind it can wait.
            self._head_deadline.start()
        elif self._is_in_head:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"The request's head was not whole after {self.max_head_s:g} s")
        else:
            self._close()

    def _on_write_stall(self) -> None:
        log.debug("%s took nothing for %g s", self.client, self.max_write_stall_s)
        self.transport.abort()

    def _count(self, num_bytes: int) -> None:
        self._num_silent_bytes = 0
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > limits.MAX_HEAD_BYTES:
            raise _HeadTooLarge

    def _refuse_head(self) -> None:
        self._refuse(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"The request's head is larger than {limits.MAX_HEAD_BYTES} bytes or {limits.MAX_HEADERS} headers",
        )

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answers and closes; it only closes when this message has an answer already, or one before it has none yet."""
        log.debug("%s: %d: %s", self.client, status, message)
        cycle = self._running
        is_its_own = cycle is not None and cycle.scope is self.scope
        if cycle is None or (not cycle.response_started if is_its_own else cycle.response_complete):
            body = error_json(status, message, code=status.name.lower())
            headers = [
                *self.server_state.default_headers,
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            lines = [name + b": " + value + b"\r\n" for name, value in headers]
            self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))
        self._close()

    def _close(self) -> None:
        self._tell_that_it_left()
        self.transport.close()
        self._write_deadline.start()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _tell_that_it_left(self) -> None:
        """Ends the request that runs. uvicorn tells only the last one that came, which may wait behind it."""
        cycle = self._running
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            self.flow.resume_writing()
