"""`roundhouse frontend`, and the frontend half of `roundhouse serve`: HTTP at once, the app when the model folder is
there (in `serve`: when the first engine is admitted), and an orderly way out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from starlette.types import ASGIApp

from roundhouse.cli.api_key_files import ApiKeyFiles
from roundhouse.cli.descriptors import raise_descriptor_limit
from roundhouse.cli.frontend_app import frontend_app
from roundhouse.cli.http_server import HttpServer, bind, url_host
from roundhouse.cli.options import AdminSettings, FrontendSettings, HttpSettings, WaitSettings
from roundhouse.frontend.live_requests import WaitLimits
from roundhouse.frontend.mp_client import AsyncMPClient
from roundhouse.model_store import ModelFolder, resolve_model
from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.limits import MAX_ADMIN_CONNECTIONS
from roundhouse.server.admin import Admin
from roundhouse.server.door import Door, DoorState
from roundhouse.server.gate import PUBLIC_PATHS, Gate
from roundhouse.telemetry.logs import configure_logs
from roundhouse.transport.key_folder import KeyFolder
from roundhouse.transport.keys import parse_frontend_keys

logger = logging.getLogger(__name__)


class HttpFrontend:
    """The HTTP side of a process that serves clients. Belongs to one event loop."""

    def __init__(
        self,
        settings: HttpSettings,
        admin: AdminSettings | None = None,
        *,
        public_paths: frozenset[str] = PUBLIC_PATHS,
    ) -> None:
        """public_paths: what needs no API key where others do."""
        self.door = Door()
        self.leaving = asyncio.Event()
        self._settings = settings
        self._keys = ApiKeyFiles(settings.api_key_files, settings.api_keys) if settings.has_keys else None
        self._listener = bind(settings.host, settings.port)
        self._servers = [(HttpServer(self._guarded(public_paths)), self._listener)]
        self._hurry = asyncio.Event()
        self.admin = None if admin is None else self._listen_for_admin(admin)

    @property
    def url(self) -> str:
        return f"http://{url_host(self._settings.host)}:{self._listener.getsockname()[1]}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answers HTTP inside the block; SIGTERM and SIGINT set `leaving`. Closes the port when the block ends."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        tasks = [
            asyncio.create_task(server.serve(sockets=[listener]), name="http") for server, listener in self._servers
        ]
        key_watcher = None if self._keys is None else asyncio.create_task(self._keys.watch(), name="API keys")
        try:
            yield
        finally:
            if key_watcher is not None:
                key_watcher.cancel()
            for server, _ in self._servers:
                server.stop()
            await asyncio.gather(*tasks)
            for _, listener in self._servers:
                listener.close()

    async def leave(self) -> None:
        """Takes nothing new; returns when no request is left, the grace is over, or a second signal came."""
        self.door.leave()
        waits = [asyncio.create_task(self.door.wait_until_empty()), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(waits, timeout=self._settings.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    def _guarded(self, public_paths: frozenset[str]) -> ASGIApp:
        if self._keys is None:
            host = self._listener.getsockname()[0]
            if not ipaddress.ip_address(host).is_loopback:
                logger.warning(
                    "no API keys are set and %s is open to others: whoever reaches it is served (--api-key-file)", host
                )
            return self.door
        salts_caches = self._settings.cache_salt_per_key
        return Gate(self.door, self._keys.ring, public_paths=public_paths, salts_caches=salts_caches)

    def _listen_for_admin(self, settings: AdminSettings) -> Admin:
        token = None if settings.token_file is None else settings.token_file.read_text().strip()
        if token == "":
            raise ConfigError(f"--admin-token-file {settings.token_file} is empty")
        listener = bind(settings.host, settings.port)
        host = listener.getsockname()[0]
        admin = Admin(
            is_ready=lambda: self.door.state is DoorState.OPEN,
            token=token,
            is_loopback=ipaddress.ip_address(host).is_loopback,
        )
        self._servers.append((HttpServer(admin.app, max_connections=MAX_ADMIN_CONNECTIONS), listener))
        logger.info("the admin port is at http://%s:%d", url_host(host), listener.getsockname()[1])
        return admin

    def _on_signal(self, number: signal.Signals) -> None:
        if self.leaving.is_set():
            self._hurry.set()
        else:
            name, grace_s = signal.Signals(number).name, self._settings.grace_s
            logger.info("%s: finishing what runs, for at most %g s; once more ends it at once", name, grace_s)
        self.leaving.set()


def wait_limits(settings: WaitSettings) -> WaitLimits:
    return WaitLimits(wait_s=settings.wait_timeout_s, resume_s=settings.resume_timeout_s)


async def done_or_leaving(work: asyncio.Future[Any], leaving: asyncio.Event) -> None:
    """Returns when `work` is done, or when the process is asked to leave; `work` is left as it is."""
    asked = asyncio.create_task(leaving.wait())
    await asyncio.wait((work, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()


async def resolved(model: str, leaving: asyncio.Event, *, weights: bool) -> ModelFolder | None:
    """The model folder, found or made in a thread; None when the process is asked to leave first.

    A thread of its own and not the event loop's: a download or a conversion may take minutes, and nobody waits for a
    daemon thread at the end of a process. A converter ends with us.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[ModelFolder] = loop.create_future()

    def resolve() -> None:
        try:
            folder = resolve_model(model, weights=weights)
        except BaseException as error:
            tell(found.set_exception, error)
        else:
            tell(found.set_result, folder)

    def tell(set_outcome: Callable[[Any], None], outcome: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if found.done() else set_outcome(outcome))

    threading.Thread(target=resolve, name="model", daemon=True).start()
    await done_or_leaving(found, leaving)
    if found.done():
        return found.result()
    found.cancel()
    return None


def run_frontend(settings: FrontendSettings) -> None:
    """Returns when the frontend has left in order. Raises a `RoundhouseError` that says why it cannot run."""
    configure_logs(settings.log_level)
    raise_descriptor_limit()
    uvloop.run(_run(settings))


async def _run(settings: FrontendSettings) -> None:
    http = HttpFrontend(settings.http, settings.admin)
    async with http.serving():
        folder = await resolved(settings.model, http.leaving, weights=False)
        if folder is None:
            return
        client = AsyncMPClient(
            settings.mesh_bind,
            expected_model=settings.http.served_names[0],
            wait_limits=wait_limits(settings.waits),
            insecure_mesh=settings.insecure_mesh,
            keys=None if settings.mesh_keys is None else KeyFolder(settings.mesh_keys, parse_frontend_keys),
        )
        names = settings.http.served_names
        async with frontend_app(folder, client, names, engines_can_come=True, admin=http.admin) as app:
            http.door.open(app)
            logger.info("serving %s at %s/v1; engines connect to %s", folder.name, http.url, settings.mesh_bind)
            await http.leaving.wait()
            await http.leave()
