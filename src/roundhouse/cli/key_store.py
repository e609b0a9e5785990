"""`KeyStore`: the folder that `roundhouse keys` works on. In it `frontends/` is what frontends mount and
`engines/IDENTITY/` what each engine mounts; `transport.keys` says what stands in them.

Every file is written whole beside its place and then moved there, readable for its owner alone. A key is replaced only
where the operation's name says so, and in an order in which each state between two writes is good.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from roundhouse.protocol.errors import ConfigError
from roundhouse.protocol.identity import check_identity
from roundhouse.transport.key_folder import read_key_files
from roundhouse.transport.keys import (
    ALLOWED,
    CLIENT_KEY,
    FrontendKeys,
    Grant,
    KeyPair,
    format_allowed,
    new_pair,
    pair_of,
    parse_frontend_keys,
    server_key_name,
    server_pub_name,
)


class KeyStore:
    """All methods raise `ConfigError`, and then no key is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def frontends(self) -> Path:
        return self.folder / "frontends"

    def engine(self, identity: str) -> Path:
        """Raises `ConfigError` for an identity that can be no folder."""
        check_identity(identity)
        if "/" in identity or identity in (".", ".."):
            raise ConfigError(f"engine {identity!r} cannot have a folder: its name has a slash or is dots alone")
        return self.folder / "engines" / identity

    def identities(self) -> list[str]:
        """Of the engines that have a folder."""
        return sorted(path.name for path in (self.folder / "engines").glob("*") if (path / CLIENT_KEY).exists())

    def read(self) -> FrontendKeys:
        if not self.frontends.is_dir():
            raise ConfigError(f"{self.folder} has no keys: `roundhouse keys new {self.folder}` makes some")
        try:
            return parse_frontend_keys(read_key_files(self.frontends))
        except ConfigError as error:
            raise ConfigError(f"{self.frontends}: {error.message}") from None

    def create(self, identities: list[str]) -> None:
        folders = [self.engine(identity) for identity in identities]
        if len(set(folders)) < len(folders):
            raise ConfigError("an engine is named twice")
        if self.frontends.exists() or (self.folder / "engines").exists():
            raise ConfigError(f"{self.folder} has keys already; nothing was changed")
        self._write(self.frontends / server_key_name(1), new_pair().secret)
        self._write(self.frontends / ALLOWED, format_allowed({}))
        for identity in identities:
            self.add(identity)

    def add(self, identity: str, epoch: int | None = None) -> None:
        folder, keys = self.engine(identity), self.read()
        if folder.exists():
            raise ConfigError(f"engine {identity} has keys already, in {folder}; nothing was changed")
        pair = new_pair()
        self._allow(keys, {pair.public: Grant(check_identity(identity), pair.public, epoch)})
        for generation, server in keys.servers.items():
            self._write(folder / server_pub_name(generation), server.public)
        self._write(folder / CLIENT_KEY, pair.secret)

    def rotate_server(self) -> int:
        """The new generation."""
        keys = self.read()
        if len(keys.servers) > 1:
            raise ConfigError("two server keys are in use already: `roundhouse keys retire` ends the old one first")
        generation, pair = max(keys.servers) + 1, new_pair()
        self._write(self.frontends / server_key_name(generation), pair.secret)
        for identity in self.identities():
            self._write(self.engine(identity) / server_pub_name(generation), pair.public)
        return generation

    def rotate_engine(self, identity: str, epoch: int | None = None) -> None:
        """Its present key is replaced in its folder, and stays allowed until it is retired."""
        folder, keys = self.engine(identity), self.read()
        self._client(identity)
        if sum(grant.identity == identity for grant in keys.grants.values()) > 1:
            raise ConfigError(
                f"engine {identity} has two keys already: `roundhouse keys retire` ends the old one first"
            )
        pair = new_pair()
        self._allow(keys, {pair.public: Grant(check_identity(identity), pair.public, epoch)})
        self._write(folder / CLIENT_KEY, pair.secret, replace=True)

    def retire_server(self) -> int:
        """The generation that is gone."""
        keys = self.read()
        if len(keys.servers) < 2:
            raise ConfigError("there is one server key: `roundhouse keys rotate-server` makes the next one first")
        generation = min(keys.servers)
        # Engines first: none of them looks for a frontend where none is any more.
        for identity in self.identities():
            (self.engine(identity) / server_pub_name(generation)).unlink(missing_ok=True)
        (self.frontends / server_key_name(generation)).unlink()
        return generation

    def retire_engine(self, identity: str) -> list[Grant]:
        """All grants of the engine but that of its present key: those that are gone."""
        keys, present = self.read(), self._client(identity)
        if present.public not in keys.grants:
            raise ConfigError(f"the key in {self.engine(identity)} is not allowed; nothing was changed")
        return self._withdraw(keys, lambda grant: grant.identity == identity and grant.public != present.public)

    def revoke(self, identity: str, public: str | None = None) -> list[Grant]:
        """One key of the engine, or all of them, and with its present key its folder: the grants that are gone."""
        keys, folder = self.read(), self.engine(identity)
        gone = self._withdraw(keys, lambda g: g.identity == identity and (public is None or g.public == public))
        if not gone:
            raise ConfigError(f"engine {identity} has no such key that is allowed; nothing was changed")
        if (folder / CLIENT_KEY).exists() and self._client(identity).public in {grant.public for grant in gone}:
            shutil.rmtree(folder)
        return gone

    def _client(self, identity: str) -> KeyPair:
        files = read_key_files(self.engine(identity))
        if CLIENT_KEY not in files:
            raise ConfigError(f"engine {identity} has no {CLIENT_KEY} in {self.engine(identity)}")
        return pair_of(files[CLIENT_KEY].strip())

    def _allow(self, keys: FrontendKeys, more: dict[str, Grant]) -> None:
        self._write(self.frontends / ALLOWED, format_allowed({**keys.grants, **more}), replace=True)

    def _withdraw(self, keys: FrontendKeys, is_gone: Callable[[Grant], bool]) -> list[Grant]:
        gone = [grant for grant in keys.grants.values() if is_gone(grant)]
        if gone:
            left = {public: grant for public, grant in keys.grants.items() if grant not in gone}
            self._write(self.frontends / ALLOWED, format_allowed(left), replace=True)
        return gone

    def _write(self, path: Path, text: str, *, replace: bool = False) -> None:
        try:
            # One by one: `parents` gives those above the last the usual mode.
            for parent in reversed([path.parent, *path.parent.parents]):
                parent.mkdir(mode=0o700, exist_ok=True)
            beside = path.parent / f".{path.name}.{secrets.token_hex(4)}"
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                with os.fdopen(fd, "w") as file:
                    file.write(text if text.endswith("\n") else text + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                if replace:
                    beside.rename(path)
                else:
                    # Unlike a move, a link takes no name that is taken.
                    os.link(beside, path)
            finally:
                beside.unlink(missing_ok=True)
        except FileExistsError:
            raise ConfigError(f"{path} is there already and was left as it is") from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from None
