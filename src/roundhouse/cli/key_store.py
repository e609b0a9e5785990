"""`KeyStore`: the folder that `roundhouse keys` works on. In it `frontends/` is what frontends mount and
`engines/IDENTITY/` what each engine mounts; `transport.keys` says what stands in them.

Every file is written whole beside its place and then moved there, readable for its owner alone. A key is replaced only
where the operation's name says so, and in an order in which each state between two writes is good. One operation at a
time changes the folder, of all processes: it holds the lock on `.lock` there.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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
    parse_client_key,
    parse_frontend_keys,
    server_key_name,
    server_pub_name,
)

LOCK = ".lock"


class KeyStore:
    """All methods raise `ConfigError`. Then nothing was changed, or what was is good, and the message says so."""

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
        with _saying(self.folder):
            return sorted(path.name for path in (self.folder / "engines").glob("*") if (path / CLIENT_KEY).exists())

    def read(self) -> FrontendKeys:
        if not os.path.isdir(self.frontends):
            raise self._no_keys()
        try:
            return parse_frontend_keys(read_key_files(self.frontends))
        except ConfigError as error:
            raise ConfigError(f"{self.frontends}: {error.message}") from None

    def create(self, identities: list[str]) -> None:
        folders = [self.engine(identity) for identity in identities]
        if len(set(folders)) < len(folders):
            raise ConfigError("an engine is named twice")
        with _saying(self.folder):
            _make_folder(self.folder)
        with self._locked():
            if self.frontends.exists() or (self.folder / "engines").exists():
                raise ConfigError(f"{self.folder} has keys already; nothing was changed")
            self._write(self.frontends / server_key_name(1), new_pair().secret)
            self._write(self.frontends / ALLOWED, format_allowed({}))
            for identity in identities:
                self._add(identity, None)

    def add(self, identity: str, epoch: int | None = None) -> None:
        with self._locked():
            self._add(identity, epoch)

    def rotate_server(self) -> int:
        """The new generation."""
        with self._locked():
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
        folder = self.engine(identity)
        with self._locked():
            keys = self.read()
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
        with self._locked():
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
        folder = self.engine(identity)
        with self._locked():
            keys, present = self.read(), self._client(identity)
            if present.public not in keys.grants:
                raise ConfigError(f"the key in {folder} is not allowed; nothing was changed")
            gone = [g for g in keys.grants.values() if g.identity == identity and g.public != present.public]
            self._withdraw(keys, gone)
            return gone

    def revoke(self, identity: str, public: str | None = None) -> list[Grant]:
        """One key of the engine, and with its present key its folder; or all of them and its folder, whatever is in it.
        The grants that are gone. When only the folder cannot be removed, the error says that they are gone."""
        folder = self.engine(identity)
        with self._locked():
            keys = self.read()
            gone = [g for g in keys.grants.values() if g.identity == identity and public in (None, g.public)]
            if not gone:
                raise ConfigError(f"engine {identity} has no such key that is allowed; nothing was changed")
            takes_folder = public is None or self._is_present(identity, public)
            self._withdraw(keys, gone)
            try:
                if takes_folder and folder.exists():
                    shutil.rmtree(folder)
            except OSError as error:
                raise ConfigError(
                    f"engine {identity} is revoked (bring {self.frontends} to the frontends), but its folder is still "
                    f"there: {error.filename or folder}: {error.strerror}"
                ) from None
            return gone

    def _add(self, identity: str, epoch: int | None) -> None:
        folder, keys = self.engine(identity), self.read()
        if folder.exists():
            raise ConfigError(f"engine {identity} has keys already, in {folder}; nothing was changed")
        pair = new_pair()
        self._allow(keys, {pair.public: Grant(check_identity(identity), pair.public, epoch)})
        for generation, server in keys.servers.items():
            self._write(folder / server_pub_name(generation), server.public)
        self._write(folder / CLIENT_KEY, pair.secret)

    def _client(self, identity: str) -> KeyPair:
        folder = self.engine(identity)
        files = read_key_files(folder)
        try:
            return parse_client_key(files)
        except ConfigError as error:
            raise ConfigError(f"{folder}: {error.message}") from None

    def _is_present(self, identity: str, public: str) -> bool:
        """Whether it is the key in the engine's folder; False for a folder that cannot be read."""
        try:
            return self._client(identity).public == public
        except ConfigError:
            return False

    def _no_keys(self) -> ConfigError:
        return ConfigError(f"{self.folder} has no keys: `roundhouse keys new {self.folder}` makes some")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Inside the block nobody else changes the folder, and an `OSError` becomes a `ConfigError`."""
        if not os.path.isdir(self.folder):
            raise self._no_keys()
        with _saying(self.folder):
            fd = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Goes with its process, however that ends.
                fcntl.flock(fd, fcntl.LOCK_EX)
                yield
            finally:
                os.close(fd)

    def _allow(self, keys: FrontendKeys, more: dict[str, Grant]) -> None:
        self._write(self.frontends / ALLOWED, format_allowed({**keys.grants, **more}), replace=True)

    def _withdraw(self, keys: FrontendKeys, gone: list[Grant]) -> None:
        if gone:
            left = {public: grant for public, grant in keys.grants.items() if grant not in gone}
            self._write(self.frontends / ALLOWED, format_allowed(left), replace=True)

    def _write(self, path: Path, text: str, *, replace: bool = False) -> None:
        try:
            _make_folder(path.parent)
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


def _make_folder(folder: Path) -> None:
    # One by one: `parents` gives those above the last the usual mode.
    for each in reversed([folder, *folder.parents]):
        each.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def _saying(path: Path) -> Iterator[None]:
    """An `OSError` inside the block becomes a `ConfigError` that names the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}") from None
