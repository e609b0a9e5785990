"""The id of each HTTP request: the client's own or a new one, in the answer's X-Request-Id whatever the answer is."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from roundhouse.protocol import limits
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.server.errors import error_json_of

HEADER = "x-request-id"


def check_request_id(value: str, *, param: str) -> str:
    """Raises `InvalidRequest`: an id stands in headers, log lines and every chunk of a stream."""
    if not (0 < len(value) <= limits.MAX_REQUEST_ID_CHARS and value.isascii() and value.isprintable()):
        raise InvalidRequest(
            f"{param} must have 1 to {limits.MAX_REQUEST_ID_CHARS} printable ASCII characters", param=param
        )
    return value


def adopt_request_id(scope: MutableMapping[str, Any], from_body: str | None) -> str:
    """The request's id, the header's before the body's before a new one. Raises `InvalidRequest` for the body's."""
    state = scope["state"]
    if from_body is not None:
        checked = check_request_id(from_body, param="request_id")
        if not state["is_client_request_id"]:
            state["request_id"] = checked
    return state["request_id"]


class RequestIdMiddleware:
    """Plain ASGI: it costs a stream one call a write."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        self._app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER)
        state = scope.setdefault("state", {})
        state["is_client_request_id"] = given is not None
        try:
            state["request_id"] = self._new_id() if given is None else check_request_id(given, param=HEADER)
        except InvalidRequest as error:
            response = Response(error_json_of(error), error.http_status, media_type="application/json")
            await response(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = state["request_id"]
            await send(message)

        await self._app(scope, receive, send_with_id)
