"""`roundhouse api-key`: makes one key, shows it once, and says what to write where."""

from __future__ import annotations

import secrets

import click

from roundhouse.protocol.errors import ConfigError
from roundhouse.server.api_keys import parse_keys

PREFIX = "rh-"
NUM_RANDOM_BYTES = 32


def new_key_lines(name: str) -> tuple[str, str]:
    """(the key, its line for a file of keys). Raises `ConfigError` for a name that no such file may hold."""
    key = PREFIX + secrets.token_urlsafe(NUM_RANDOM_BYTES)
    try:
        (made,) = parse_keys(f"{key} {name}", source="")
    except ConfigError:
        made = None
    if made is None or made.name != name:
        raise ConfigError(f"--name {name!r} has 1 to 64 letters, digits, dots, dashes, @ and _")
    return key, f"sha256:{made.digest.hex()} {name}"


def run_api_key(name: str) -> None:
    """The line of the hash goes to standard output, so that `>>` adds it to a file; the key is for eyes only."""
    key, line = new_key_lines(name)
    click.echo(f"The key, for the client; it is shown this once:\n\n    {key}\n", err=True)
    click.echo("Its line for a file that --api-key-file names:\n", err=True)
    click.echo(line)
