"""`Gate`: who may come in. Everything needs an API key but a short list of paths, unknown routes included.

It stands around everything else and decides on `scope["path"]`, the same decoded path that the router goes by, and on
nothing that is rebuilt from what a client says of itself: a Host header cannot turn one path into another
(CVE-2026-48746).
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from roundhouse.protocol.errors import RoundhouseError, Unauthenticated
from roundhouse.server.api_keys import ApiKey, KeyRing
from roundhouse.server.cache_salt import set_key_salt
from roundhouse.server.errors import error_json_of

PUBLIC_PATHS = frozenset({"/health", "/ping", "/version"})
"""What probes ask, and what says nothing of models or clients."""

POLICY_VIOLATION = 1008
"""The close code of a websocket; before it is accepted, servers answer 403."""


class Gate:
    """An ASGI app around the app. Belongs to one event loop."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Callable[[], KeyRing],
        *,
        public_paths: frozenset[str] = PUBLIC_PATHS,
        salts_caches: bool = False,
    ) -> None:
        """keys: asked for each request, since keys come and go.

        salts_caches: each key has a prefix cache of its own, so that no client can tell by the time to the first token
        what another one has asked (CVE-2025-46570).
        """
        self._app = app
        self._keys = keys
        self._public_paths = public_paths
        self._salts_caches = salts_caches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] in self._public_paths):
            await self._app(scope, receive, send)
            return
        try:
            key = self._admit(scope)
        except Unauthenticated as error:
            await _refuse(scope, error, send)
            return
        if self._salts_caches:
            set_key_salt(scope, key)
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> ApiKey:
        """Raises `Unauthenticated`."""
        key = self._keys().find(bearer_token(scope))
        if key is None:
            raise Unauthenticated("The API key is not valid")
        return key


def bearer_token(scope: Scope) -> bytes:
    """Of `Authorization: Bearer TOKEN`, the only place where a token counts. Raises `Unauthenticated`.

    Two such headers are refused: which one counts is what a proxy and we could disagree about.
    """
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if not given:
        raise Unauthenticated("An API key is needed: Authorization: Bearer KEY")
    scheme, _, token = given[0].partition(b" ")
    token = token.lstrip(b" ")
    if len(given) > 1 or scheme.lower() != b"bearer" or not token:
        raise Unauthenticated("The API key is sent as one header, Authorization: Bearer KEY")
    return token


async def _refuse(scope: Scope, error: RoundhouseError, send: Send) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.message})
        return
    body = error_json_of(error)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": error.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
