"""The error tree as HTTP: status, headers and OpenAI's body {"error": {"message", "type", "param", "code"}}.

Messages of errors that a client caused are ours and stand as they are; those of the server's side may quote an
exception from anywhere and lose paths and addresses here.
"""

from __future__ import annotations

import logging
import re
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from roundhouse.protocol.errors import CapacityError, ModelNotFound, RequestError, RoundhouseError

log = logging.getLogger(__name__)

MAX_MESSAGE_CHARS = 1000
MAX_ECHO_CHARS = 200
RETRY_AFTER_S = 1
CLIENT_CLOSED_REQUEST = 499

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_SERVER_PATH = re.compile(r"(?<![\w/.:])/(?:[\w.+@~-]+/)+[\w.+@~-]*")
_SDK_RETRIES = frozenset({408, 409, 429})
"""Besides 5xx: what OpenAI's SDKs repeat on their own unless x-should-retry says otherwise."""


def shorten(text: str, max_chars: int = MAX_ECHO_CHARS) -> str:
    """What a client sent, as far as an answer may repeat it."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}…"


def error_type(status: int) -> str:
    if status == HTTPStatus.NOT_FOUND:
        return "NotFoundError"
    return "server_error" if status >= 500 else "invalid_request_error"


def error_json(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    error = {"message": shorten(message, MAX_MESSAGE_CHARS), "type": error_type(status), "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def error_json_of(error: Exception) -> bytes:
    """The body for any exception; one that is not in our tree says nothing of itself."""
    if not isinstance(error, RoundhouseError):
        return error_json(500, "The server failed on this request.", code=RoundhouseError.code)
    message = error.message
    if not isinstance(error, RequestError):
        message = _SERVER_PATH.sub("…", _ADDRESS.sub("…", message))
    param = "model" if isinstance(error, ModelNotFound) and error.param is None else error.param
    return error_json(error.http_status, message, param=param, code=error.code)


def retry_headers(error: RoundhouseError) -> dict[str, str]:
    if error.http_status < 500 and error.http_status not in _SDK_RETRIES:
        return {}
    headers = {"x-should-retry": "true" if error.retry_helps else "false"}
    if error.retry_helps:
        headers["retry-after"] = str(RETRY_AFTER_S)
    return headers


def add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(RoundhouseError, _on_roundhouse_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_unexpected)


def _json(status: int, body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


async def _on_roundhouse_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RoundhouseError)
    # A probe of a server that starts, or a crowd that meets a full one, is no fault to be told of line by line.
    if error.http_status >= 500 and not isinstance(error, CapacityError):
        log.warning("%s %s: %s: %s", request.method, request.scope["path"], error.code, error.message)
    return _json(error.http_status, error_json_of(error), retry_headers(error))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {shorten(request.scope['path'])}"
    body = error_json(error.status_code, f"{where}: {error.detail}", code=HTTPStatus(error.status_code).name.lower())
    return _json(error.status_code, body, dict(error.headers or {}))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_unexpected(request: Request, error: Exception) -> Response:
    headers = {"x-should-retry": "false"}
    # This handler stands outside of the middleware that adds the id to every other answer.
    if request_id := request.scope.get("state", {}).get("request_id"):
        headers["x-request-id"] = request_id
    return _json(500, error_json_of(error), headers)
