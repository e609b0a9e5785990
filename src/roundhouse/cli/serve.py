"""`roundhouse serve`: one frontend and local engine processes over ipc, nothing else."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvloop

from roundhouse.cli.descriptors import raise_descriptor_limit
from roundhouse.cli.engine_processes import EngineProcesses, EnginesFailed
from roundhouse.cli.frontend import HttpFrontend, done_or_leaving, resolved, wait_limits
from roundhouse.cli.frontend_app import frontend_app
from roundhouse.cli.options import ServeSettings, tuning_flags
from roundhouse.clock import monotonic
from roundhouse.frontend.mp_client import AsyncMPClient
from roundhouse.model_store import ModelFolder, read_model_config
from roundhouse.protocol.errors import ConfigError
from roundhouse.server.gate import PUBLIC_PATHS
from roundhouse.telemetry.logs import configure_logs
from roundhouse.transport.frontend_link import fresh_ipc_address

logger = logging.getLogger(__name__)


def run_serve(settings: ServeSettings) -> None:
    """Returns when everything has left in order, engines included. Raises a `RoundhouseError` when it cannot serve."""
    configure_logs(settings.log_level)
    raise_descriptor_limit()
    try:
        uvloop.run(_run(settings, monotonic()))
    except EnginesFailed as failure:
        if not failure.has_said_why:
            print(f"roundhouse: error: {failure.message}", file=sys.stderr)
        sys.exit(failure.exit_code)


async def _run(settings: ServeSettings, started: float) -> None:
    # One process for one machine, scraped where it is served; a frontend of many has its admin port for that.
    http = HttpFrontend(settings.http, settings.admin, public_paths=PUBLIC_PATHS | {"/metrics"})
    async with http.serving():
        folder = await resolved(settings.model, http.leaving, weights=True)
        if folder is None:
            return
        _check_max_model_len(settings, folder)
        await _serve(settings, http, folder, started)


async def _serve(settings: ServeSettings, http: HttpFrontend, folder: ModelFolder, started: float) -> None:
    served_name = settings.http.served_names[0]
    mesh = fresh_ipc_address()
    client = AsyncMPClient(mesh, expected_model=served_name, wait_limits=wait_limits(settings.waits))
    arguments = [
        str(folder.path),
        *("--served-model-name", served_name, "--frontends", mesh, "--log-level", settings.log_level),
        *("--grace", "0", "--engines-on-machine", str(settings.engines)),
        *tuning_flags(settings.tuning),
    ]
    names = settings.http.served_names
    async with frontend_app(folder, client, names, engines_can_come=False, admin=http.admin) as app:
        ready = asyncio.create_task(client.wait_for_engine(), name="first engine")
        try:
            async with _running(EngineProcesses(arguments, settings.engines, is_serving=ready.done)):
                await done_or_leaving(ready, http.leaving)
                if not http.leaving.is_set():
                    http.door.open(app)
                    took_s = monotonic() - started
                    logger.info("ready in %.1f s: %s at %s/v1", took_s, served_name, http.url)
                    await http.leaving.wait()
                await http.leave()
        finally:
            ready.cancel()
    logger.info("stopped")


def _check_max_model_len(settings: ServeSettings, folder: ModelFolder) -> None:
    """What the config alone shows is said before an engine spends seconds on importing torch; the engine knows more."""
    wanted, longest = settings.tuning.max_model_len, read_model_config(folder.path).max_model_len
    if wanted is not None and wanted > longest:
        raise ConfigError(f"--max-model-len {wanted} is over what {folder.name} serves: {longest}")


@asynccontextmanager
async def _running(processes: EngineProcesses) -> AsyncIterator[None]:
    """Keeps the engines alive inside the block and ends them after it; their failure ends the block."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(processes.run(), name="engines")
            yield
            processes.stop()
    except* EnginesFailed as failures:
        raise failures.exceptions[0] from None
