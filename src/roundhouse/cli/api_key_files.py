"""The files of API keys, read again while the server runs: keys come and go without a restart.

A file, or a folder as Kubernetes mounts a Secret: each of its files, but for names that begin with a dot, which are how
the mount swaps its contents. What cannot be read or understood changes nothing: the last good keys stay, and the log
says why, once for each change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from roundhouse.protocol import limits
from roundhouse.protocol.errors import ConfigError
from roundhouse.server.api_keys import ApiKey, KeyRing, parse_keys

logger = logging.getLogger(__name__)

REREAD_S = 2.0


class ApiKeyFiles:
    """Belongs to one event loop."""

    def __init__(self, paths: Sequence[Path], fixed: Sequence[ApiKey] = ()) -> None:
        """Reads them. fixed: keys that are in no file. Raises `ConfigError`."""
        self._paths = tuple(paths)
        self._fixed = tuple(fixed)
        self._ring = self._read()
        self._complaint = ""
        for key in self._ring.keys:
            if key.is_short:
                logger.warning("the API key %s is short enough to be guessed; `roundhouse api-key` makes one", key.name)

    def ring(self) -> KeyRing:
        """The keys that are valid now."""
        return self._ring

    async def watch(self) -> None:
        """Reads the files every `REREAD_S` seconds, until it is cancelled; in a thread, since a disk may be slow."""
        while self._paths:
            await asyncio.sleep(REREAD_S)
            try:
                self.adopt(await asyncio.to_thread(self._read))
            except ConfigError as error:
                self.complain(error.message)

    def adopt(self, ring: KeyRing) -> None:
        self._complaint = ""
        if ring.keys != self._ring.keys:
            self._ring = ring
            names = sorted({key.name for key in ring.keys})
            logger.info("%d API keys from here on: %s", len(ring.keys), ", ".join(names[:20]))

    def complain(self, why: str) -> None:
        if why != self._complaint:
            self._complaint = why
            logger.warning("the API keys stay as they are: %s", why)

    def _read(self) -> KeyRing:
        keys = list(self._fixed)
        for path in self._paths:
            keys += read_keys(path)
        return KeyRing(keys)


def read_keys(path: Path) -> list[ApiKey]:
    """Raises `ConfigError`."""
    try:
        if not path.is_dir():
            return _read_file(path)
        files = sorted(file for file in path.iterdir() if not file.name.startswith(".") and file.is_file())
        return [key for file in files for key in _read_file(file)]
    except OSError as error:
        raise ConfigError(f"the API keys in {path} cannot be read: {error.strerror}") from None


def _read_file(path: Path) -> list[ApiKey]:
    with path.open("rb") as file:
        raw = file.read(limits.MAX_API_KEY_FILE_BYTES + 1)
    if len(raw) > limits.MAX_API_KEY_FILE_BYTES:
        raise ConfigError(f"{path} is too large for a file of API keys")
    try:
        return parse_keys(raw.decode(), source=path.name)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text, which a file of API keys is") from None
