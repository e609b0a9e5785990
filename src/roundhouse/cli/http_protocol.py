"""uvicorn's HTTP/1.1 on httptools, with bounds where it has none, and its own refusals in our shape.

llhttp keeps a header whose end has not come and tells nobody, so two things are counted: what the parser has told of a
message's head, and the bytes it was fed since it last told anything. Over either bound the connection ends with 431.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from roundhouse.protocol import limits
from roundhouse.server.errors import error_json

log = logging.getLogger(__name__)


class _HeadTooLarge(Exception):
    """Out of a callback of the parser, which stops there."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    _running: RequestResponseCycle | None = None
    _num_head_bytes = 0
    _num_silent_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        assert self.parser is not None
        self._num_silent_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # No upgrade is served: the request is answered as if it had not asked, as RFC 9110 has it.
            log.debug("%s asked for an upgrade, which is ignored", self.client)
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

    def eof_received(self) -> None:
        """A client that closes its half has left: the other half is closed at once, and no write may follow."""
        self._tell_that_it_left()

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell_that_it_left()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def on_message_begin(self) -> None:
        self._num_head_bytes = self._num_silent_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers come here too, and count as the head does."""
        self._count(len(name) + len(value))
        if len(self.headers) >= limits.MAX_HEADERS:
            raise _HeadTooLarge
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._num_silent_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_silent_bytes = 0
        super().on_message_complete()

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
        self._tell_that_it_left()
        self.transport.close()

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
