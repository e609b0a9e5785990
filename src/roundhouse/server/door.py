"""`Door`: what clients meet before the app is there and after it has begun to leave.

The port is taken before a model is loaded, so somebody has to answer at once; and a server that leaves finishes what it
has and takes nothing new. LOADING and LEAVING turn requests away with 503 and Retry-After, probes of /health
too; /metrics and /version are answered as long as the app is there.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from starlette.types import ASGIApp, Receive, Scope, Send

from roundhouse.protocol.errors import NoEngine, RoundhouseError, ShuttingDown
from roundhouse.protocol.machine import Machine
from roundhouse.server.errors import error_json_of, retry_headers

ALWAYS_OPEN = frozenset({"/metrics", "/version"})


class DoorState(Enum):
    LOADING = "loading"
    OPEN = "open"
    LEAVING = "leaving"


class Open:
    """The app is there."""


class Leave:
    """The process was asked to end."""


TABLE: dict[tuple[DoorState, type], DoorState] = {
    (DoorState.LOADING, Open): DoorState.OPEN,
    (DoorState.LOADING, Leave): DoorState.LEAVING,
    (DoorState.OPEN, Leave): DoorState.LEAVING,
    (DoorState.LEAVING, Leave): DoorState.LEAVING,
}


class Door:
    """An ASGI app around the app. Belongs to one event loop."""

    def __init__(self) -> None:
        self._machine = Machine("door", TABLE, DoorState.LOADING)
        self._app: ASGIApp | None = None
        self._num_inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def state(self) -> DoorState:
        return self._machine.state

    def open(self, app: ASGIApp) -> None:
        """From here on `app` answers."""
        self._machine.move(Open)
        self._app = app

    def leave(self) -> None:
        """From here on nothing new comes in."""
        self._machine.move(Leave)

    async def wait_until_empty(self) -> None:
        """Returns when no request is inside."""
        await self._empty.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if self._app is None or (self.state is DoorState.LEAVING and scope["path"] not in ALWAYS_OPEN):
            await _turn_away(self.state, send)
            return
        self._num_inside += 1
        self._empty.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_inside -= 1
            if self._num_inside == 0:
                self._empty.set()


async def _turn_away(state: DoorState, send: Send) -> None:
    error: RoundhouseError
    if state is DoorState.LEAVING:
        error = ShuttingDown("this server is shutting down")
    else:
        error = NoEngine("the model is being loaded")
    headers = {"content-type": "application/json", "connection": "close", **retry_headers(error)}
    raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.http_status, "headers": raw_headers})
    await send({"type": "http.response.body", "body": error_json_of(error)})
