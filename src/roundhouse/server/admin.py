"""The admin port of a frontend: probes, metrics, engines and their load, and the drain of one engine. Never public.

`/readyz` tells whether this frontend takes requests, whatever its engines do: a frontend whose engines sleep is ready.
Everything but reading one of `OPEN_PATHS` needs the bearer token, unknown routes included; without a token it is open
on the loopback address and closed elsewhere. `AdminGate` decides before any route is looked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from roundhouse.frontend.core_client import EngineView
from roundhouse.protocol.errors import EngineNotFound, Forbidden, InvalidRequest, NoEngine, Unauthenticated
from roundhouse.server.errors import add_error_handlers, error_json_of, shorten
from roundhouse.server.exposition import exposition
from roundhouse.server.gate import bearer_token

OPEN_PATHS = frozenset({"/livez", "/readyz", "/metrics", "/engines", "/load"})
"""What anybody may read who reaches the port."""

MAX_ADMIN_BODY_BYTES = 4096
MAX_ADMIN_BODY_S = 2.0


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    """engine: its identity."""

    engine: str


@dataclass(frozen=True, slots=True)
class AdminView:
    """What there is to be seen and done once the model folder is there.

    drain: moves the streams of the engine with that identity, and gives it nothing new; False when it is not here.
    has_failed: no request can ever end well again.
    """

    engines: Callable[[], Sequence[EngineView]]
    num_waiting: Callable[[], int]
    drain: Callable[[str], bool]
    registry: CollectorRegistry
    has_failed: Callable[[], bool] = lambda: False


class Admin:
    """`app` answers from the start; `open` gives it something to show. token: None where nobody else can connect."""

    def __init__(self, *, is_ready: Callable[[], bool], token: str | None, is_loopback: bool) -> None:
        self._is_ready = is_ready
        self._view: AdminView | None = None
        self.app = AdminGate(self._build_app(), token=token, is_loopback=is_loopback)

    def open(self, view: AdminView) -> None:
        self._view = view

    def _build_app(self) -> FastAPI:
        app = FastAPI(title="Roundhouse admin", docs_url=None, redoc_url=None, openapi_url=None)
        add_error_handlers(app)

        @app.head("/livez")
        @app.get("/livez")
        async def livez() -> Response:
            return Response(status_code=503 if self._has_failed() else 200)

        @app.head("/readyz")
        @app.get("/readyz")
        async def readyz() -> Response:
            return Response(status_code=200 if self._is_ready() and not self._has_failed() else 503)

        @app.get("/metrics")
        async def metrics(request: Request) -> Response:
            return exposition(self._seen().registry, request.headers.get("accept", ""))

        @app.get("/engines")
        async def engines() -> list[dict[str, Any]]:
            return [_engine(view) for view in self._seen().engines()]

        @app.get("/load")
        async def load() -> dict[str, Any]:
            view = self._seen()
            return _load(view.engines(), view.num_waiting())

        @app.post("/drain")
        async def drain(request: Request) -> Response:
            body = await _read(request)
            if not self._seen().drain(body.engine):
                raise EngineNotFound(f"no engine {shorten(body.engine)} is here", param="engine")
            return Response(status_code=202)

        return app

    def _seen(self) -> AdminView:
        if self._view is None:
            raise NoEngine("the model is being loaded")
        return self._view

    def _has_failed(self) -> bool:
        """Every request from here on fails: only a new process can serve."""
        return self._view is not None and self._view.has_failed()


class AdminGate:
    """An ASGI app around the admin app: reading what is open, and everything to who has the token."""

    def __init__(self, app: ASGIApp, *, token: str | None, is_loopback: bool) -> None:
        self._app = app
        self._digest = None if token is None else sha256(token.encode()).digest()
        self._is_loopback = is_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served here
        if not (scope["path"] in OPEN_PATHS and scope["method"] in ("GET", "HEAD")):
            try:
                self._check_token(scope)
            except Forbidden as error:
                answer = Response(error_json_of(error), error.http_status, media_type="application/json")
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_token(self, scope: Scope) -> None:
        """Raises `Forbidden`."""
        if self._digest is None:
            if not self._is_loopback:
                raise Forbidden("this admin port has no token, and is open to others: it changes nothing")
            if "origin" in Headers(scope=scope):
                raise Forbidden("this admin port has no token: a web page changes nothing here")
            return
        try:
            given = bearer_token(scope)
        except Unauthenticated:
            given = b""
        if not compare_digest(sha256(given).digest(), self._digest):
            raise Forbidden("the bearer token is missing or wrong")


async def _read(request: Request) -> DrainBody:
    body = b""
    try:
        async with asyncio.timeout(MAX_ADMIN_BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MAX_ADMIN_BODY_BYTES:
                    raise InvalidRequest(f"a body here has at most {MAX_ADMIN_BODY_BYTES} bytes")
    except TimeoutError:
        raise InvalidRequest(f"the body was not whole after {MAX_ADMIN_BODY_S:g} s") from None
    if not body:
        raise InvalidRequest('the body is empty: it is {"engine": identity}', param="engine")
    try:
        return msgspec.json.decode(body, type=DrainBody)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f'the body is {{"engine": identity}}: {error}', param="engine") from None


def _engine(view: EngineView) -> dict[str, Any]:
    return {
        "identity": view.identity,
        "engine_index": view.engine_index,
        "epoch": list(view.hello.epoch),
        "state": view.state,
        "model": view.hello.model,
        "resume_key": view.hello.resume_key,
        "num_running": view.load.num_running_reqs,
        "num_waiting": view.load.num_waiting_reqs,
        "kv_cache_usage": view.load.kv_cache_usage,
        "max_num_seqs": view.hello.max_num_seqs,
        "num_inflight": view.num_inflight,
        "last_heard_s": view.last_heard_s,
        "server_key": view.server_key,
        "num_sessions": view.num_sessions,
    }


def _load(views: Sequence[EngineView], num_waiting: int) -> dict[str, Any]:
    """Of all engines together; `num_unplaced` are requests of this frontend that no engine has."""
    return {
        "num_engines": len(views),
        "num_admitted": sum(view.state == "admitted" for view in views),
        "num_running": sum(view.load.num_running_reqs for view in views),
        "num_waiting": sum(view.load.num_waiting_reqs for view in views),
        "num_unplaced": num_waiting,
        "max_num_seqs": sum(view.hello.max_num_seqs for view in views),
        "kv_cache_usage": max((view.load.kv_cache_usage for view in views), default=0.0),
    }
