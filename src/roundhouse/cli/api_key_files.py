"""The files of API keys, read again while the server runs: keys come and go without a restart.

A file, or a folder as Kubernetes mounts a Secret: each of its files, but for names that begin with a dot, which are how
the mount swaps its contents. What cannot be read or understood changes nothing: the last good keys stay, and the log
says why, once for each change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from roundhouse.protocol import limits
from roundhouse.protocol.errors import ConfigError
from roundhouse.server.api_keys import ApiKey, KeyRing, parse_keys
from roundhouse.transport.last_good import LastGood, read_version

logger = logging.getLogger(__name__)

REREAD_S = 2.0


class ApiKeyFiles:
    """Belongs to one event loop."""

    def __init__(self, paths: Sequence[Path], fixed: Sequence[ApiKey] = ()) -> None:
        """Reads them. fixed: keys that are in no file. Raises `ConfigError`."""
        self._paths = tuple(paths)
        self._fixed = tuple(fixed)
        self._last_good = LastGood(self._read, self._parse, what="the API keys")
        for key in self.ring().keys:
            if key.is_short:
                logger.warning("the API key %s is short enough to be guessed; `roundhouse api-key` makes one", key.name)

    def ring(self) -> KeyRing:
        """The keys that are valid now."""
        return self._last_good.value

    async def watch(self) -> None:
        """Reads the files every `REREAD_S` seconds, until it is cancelled; in a thread, since a disk may be slow."""
        while self._paths:
            await asyncio.sleep(REREAD_S)
            await asyncio.to_thread(self.poll)

    def poll(self) -> None:
        """Reads the files once. Raises nothing."""
        ring = self._last_good.poll()
        if ring is not None:
            names = sorted({key.name for key in ring.keys})
            logger.info("%d API keys from here on: %s", len(ring.keys), ", ".join(names[:20]))

    def _read(self) -> dict[str, str]:
        return {f"{path}/{name}": text for path in self._paths for name, text in read_texts(path).items()}

    def _parse(self, texts: Mapping[str, str]) -> KeyRing:
        found = [key for path, text in texts.items() for key in parse_keys(text, source=path.rpartition("/")[2])]
        return KeyRing([*self._fixed, *found])


def read_texts(path: Path) -> dict[str, str]:
    """Name → text of a file, or of each file of one version of a folder. Raises `ConfigError`."""
    try:
        return read_version(path, _read_folder) if path.is_dir() else {path.name: _read_file(path)}
    except OSError as error:
        raise ConfigError(f"the API keys in {path} cannot be read: {error.strerror}") from None


def _read_folder(folder: Path) -> dict[str, str]:
    files = sorted(file for file in folder.iterdir() if not file.name.startswith(".") and file.is_file())
    return {file.name: _read_file(file) for file in files}


def _read_file(path: Path) -> str:
    with path.open("rb") as file:
        raw = file.read(limits.MAX_API_KEY_FILE_BYTES + 1)
    if len(raw) > limits.MAX_API_KEY_FILE_BYTES:
        raise ConfigError(f"{path} is too large for a file of API keys")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text, which a file of API keys is") from None
