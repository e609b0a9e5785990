"""`roundhouse keys`: makes, rotates and revokes the keys of a closed mesh. `key_store` does it to the files."""

from __future__ import annotations

from pathlib import Path

import click

from roundhouse.cli.key_store import KeyStore
from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.keys import Grant, fingerprint

_folder = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_identity = click.argument("identity")
_epoch = click.option(
    "--epoch", type=click.IntRange(0), default=None, help="The key is good for this granted epoch only."
)


@click.group()
def keys() -> None:
    """Make and change the keys of the mesh between frontends and engines.

    FOLDER holds all of them: keep it as you keep a CA's key. Frontends mount FOLDER/frontends, each engine mounts
    FOLDER/engines/IDENTITY, both with --mesh-keys, as folders or as Kubernetes Secrets (`kubectl create secret generic
    NAME --from-file=…`). Running processes read their folder again within a second or so of a change; nothing has to
    be restarted.

    \b
    roundhouse keys new FOLDER --engines a,b       the first keys
    roundhouse keys add FOLDER c                   one more engine
    roundhouse keys rotate-server FOLDER           the frontends' next key …
    roundhouse keys retire FOLDER                  … and the end of the old one
    roundhouse keys rotate-engine FOLDER a         an engine's next key …
    roundhouse keys retire FOLDER --engine a       … and the end of the old one
    roundhouse keys revoke FOLDER a                lock an engine out now
    """


@keys.command()
@_folder
@click.option("--engines", default="", help="Identities of the engines, separated by commas.")
def new(folder: Path, engines: str) -> None:
    """Make a server key, and a client key for each engine. FOLDER may have no keys yet."""
    store = KeyStore(folder)
    identities = [part.strip() for part in engines.split(",") if part.strip()]
    store.create(identities)
    _say(f"made the frontends' key and those of {len(identities)} engine(s) in {folder}")
    _say("next:")
    _say(f"  roundhouse frontend … --mesh-keys {store.frontends}")
    for identity in identities:
        _say(f"  roundhouse engine … --identity {identity} --mesh-keys {store.engine(identity)}")
    if not identities:
        _say(f"  roundhouse keys add {folder} IDENTITY, for each engine")


@keys.command()
@_folder
@_identity
@_epoch
def add(folder: Path, identity: str, epoch: int | None) -> None:
    """Make the keys of one more engine."""
    store = KeyStore(folder)
    store.add(identity, epoch)
    _say(f"made the key of engine {identity}")
    _say_steps(
        f"bring {store.frontends} to the frontends: they let it in from then on",
        f"roundhouse engine … --identity {identity} --mesh-keys {store.engine(identity)}",
    )


@keys.command("rotate-server")
@_folder
def rotate_server(folder: Path) -> None:
    """Make the frontends' next key. Both are in use until `retire`; no stream ends."""
    store = KeyStore(folder)
    generation = store.rotate_server()
    ports = "its own ports" if generation % 2 else "the two ports above (5572 and 5573 of 5570)"
    _say(f"made server key {generation}: with it frontends listen on {ports} as well")
    _say_steps(
        f"bring {store.frontends} to the frontends; let the network policy pass those ports",
        f"bring {folder}/engines/IDENTITY to each engine: it goes over by itself, and finishes what it has",
        f"when every engine has gone over: roundhouse keys retire {folder}",
    )


@keys.command("rotate-engine")
@_folder
@_identity
@_epoch
def rotate_engine(folder: Path, identity: str, epoch: int | None) -> None:
    """Make an engine's next key. Both are allowed until `retire --engine`; no stream ends."""
    store = KeyStore(folder)
    store.rotate_engine(identity, epoch)
    _say(f"made the next key of engine {identity}; the one before is still allowed")
    _say_steps(
        f"bring {store.frontends} to the frontends",
        f"bring {store.engine(identity)} to the engine: it goes over by itself",
        f"when it has gone over: roundhouse keys retire {folder} --engine {identity}",
    )


@keys.command()
@_folder
@click.option("--engine", "identity", default=None, help="End this engine's old keys, not the frontends'.")
def retire(folder: Path, identity: str | None) -> None:
    """End the old key after a rotation. What still uses it loses its session, and its streams go on elsewhere."""
    store = KeyStore(folder)
    if identity is not None:
        _say_gone(store.retire_engine(identity))
        _say(f"next: bring {store.frontends} to the frontends")
        return
    generation = store.retire_server()
    _say(f"server key {generation} is gone")
    _say_steps(
        f"bring {folder}/engines/IDENTITY to each engine",
        f"bring {store.frontends} to the frontends: they close its ports",
    )


@keys.command()
@_folder
@_identity
@click.option("--key", "known_as", default=None, help="Only the key with this fingerprint, as `show` prints it.")
def revoke(folder: Path, identity: str, known_as: str | None) -> None:
    """Lock an engine out, or one of its keys. Its streams go on at other engines."""
    store = KeyStore(folder)
    public = None
    if known_as is not None:
        grants = store.read().grants
        public = next((key for key, grant in grants.items() if fingerprint(key) == known_as), None)
        if public is None or grants[public].identity != identity:
            raise ConfigError(f"engine {identity} has no key {known_as}; nothing was changed")
    _say_gone(store.revoke(identity, public))
    _say(f"next: bring {store.frontends} to the frontends: from then on nothing of it is heard")


@keys.command()
@_folder
def show(folder: Path) -> None:
    """List the keys by their fingerprints."""
    store = KeyStore(folder)
    found = store.read()
    for generation, pair in found.servers.items():
        _say(f"server {generation}  {fingerprint(pair.public)}")
    for grant in found.grants.values():
        _say(_grant(grant))


def _grant(grant: Grant) -> str:
    epoch = "" if grant.epoch is None else f"  epoch {grant.epoch}"
    return f"engine {grant.identity}  {fingerprint(grant.public)}{epoch}"


def _say_gone(grants: list[Grant]) -> None:
    for grant in grants:
        _say(f"no longer allowed: {_grant(grant)}")
    if not grants:
        _say("there was nothing to retire")


def _say_steps(*steps: str) -> None:
    """What is to be done next, in the order in which it is safe."""
    _say("next, in this order:")
    for number, step in enumerate(steps, start=1):
        _say(f"  {number}. {step}")


def _say(line: str) -> None:
    click.echo(line)
