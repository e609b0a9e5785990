"""`roundhouse`: the commands. Each imports what it runs only when it runs, so that `--help` and engines start fast."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import click

from roundhouse import __version__
from roundhouse.cli import options
from roundhouse.protocol.errors import ConfigError, RoundhouseError
from roundhouse.telemetry.logs import configure_logs

logger = logging.getLogger("roundhouse.cli")  # this module may be __main__

BAD_CONFIG_EXIT_CODE = 2
"""Also click's own for a bad flag: nothing that a restart could mend."""


class _Commands(click.Group):
    """`keys` is a group of its own, whose module is imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "keys"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "keys":
            return super().get_command(ctx, cmd_name)
        from roundhouse.cli.keys import keys

        return keys


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="roundhouse")
def cli() -> None:
    """Serve large language models through the OpenAI API: `roundhouse serve` on one machine, `roundhouse frontend` and
    `roundhouse engine` on several.

    MODEL is a folder with safetensors, a hub id, a .gguf file, or `smollm2`, the small chat model that is built in and
    the default.
    """


@cli.command()
@options.model
@options.http
@options.waits
@options.admin
@options.engines
@options.engine_tuning
@options.log_level
def serve(**flags: Any) -> None:
    """Serve MODEL here: one frontend and local engine processes.

    The OpenAI API is at http://HOST:PORT/v1, metrics are at /metrics.
    """
    from roundhouse.cli.serve import run_serve

    run_serve(options.serve_settings(flags))


@cli.command()
@options.model
@options.http
@options.waits
@options.admin
@options.mesh_bind
@options.log_level
def frontend(**flags: Any) -> None:
    """Run a frontend: the OpenAI API for engines that connect to it."""
    from roundhouse.cli.frontend import run_frontend

    run_frontend(options.frontend_settings(flags))


@cli.command()
@options.model
@options.mesh_connect
@options.engine_tuning
@options.log_level
def engine(**flags: Any) -> None:
    """Run one engine: it holds MODEL and connects to frontends."""
    settings = options.engine_settings(flags)
    configure_logs(settings.log_level, engine=settings.identity)
    # Until it serves there is nothing to finish; and pid 1 of a container ignores a signal that it has no handler for.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    logger.info("starting: torch and transformers take some seconds")
    from roundhouse.cli.engine import run_engine

    exit_code = run_engine(settings)
    # Python's own way out unloads torch: half a second, and a screenful about leaks in libraries under it.
    logging.shutdown()
    os._exit(exit_code)


@cli.command("api-key")
@click.option("--name", default="client", show_default=True, help="What to call the key; no secret.")
def api_key(name: str) -> None:
    """Make an API key: the key for its client, and the line with its hash for a file of keys."""
    from roundhouse.cli.api_key import run_api_key

    run_api_key(name)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


def main(run: Callable[..., Any] = cli) -> None:
    """The console script: an error of ours is one line on stderr and a non-zero exit code."""
    try:
        run(prog_name="roundhouse")
    except RoundhouseError as error:
        click.echo(f"roundhouse: error: {error.message}", err=True)
        sys.exit(BAD_CONFIG_EXIT_CODE if isinstance(error, ConfigError) else 1)


if __name__ == "__main__":
    main()
