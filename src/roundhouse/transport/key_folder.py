"""`KeyFolder`: reads a key folder, and again whenever it changes. The texts are judged by `keys`."""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.keys import is_key_file, is_secret
from roundhouse.transport.last_good import LastGood, is_mounted, read_version

POLL_S = 1.0
MAX_FILE_BYTES = 2**22

T = TypeVar("T")

logger = logging.getLogger(__name__)


def read_key_files(folder: Path) -> dict[str, str]:
    """Name → text of the files that mean something.

    Raises `ConfigError`, also for a secret key that others than its owner may read. In a mounted Secret the modes are
    the volume's (with fsGroup the group reads), and the container is alone with it: they are not looked at there.
    """

    def read(version: Path) -> dict[str, str]:
        names = sorted(name for name in os.listdir(version) if is_key_file(name))
        are_ours = not is_mounted(folder)
        return {name: _read(version / name, check_mode=are_ours and is_secret(name)) for name in names}

    return read_version(folder, read)


def _read(path: Path, *, check_mode: bool) -> str:
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if check_mode and mode & 0o077:
            raise ConfigError(f"{path}: a secret key that others may read (mode {mode:04o}); chmod 600")
        raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: over {MAX_FILE_BYTES} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None


class KeyFolder(Generic[T]):
    """`keys`: of the last good version. The first one is read at once: raises `ConfigError` when it is not good."""

    def __init__(self, folder: Path, parse: Callable[[Mapping[str, str]], T]) -> None:
        self.folder = folder
        self._parse = parse
        self._last_good = LastGood(lambda: read_key_files(folder), self._parsed, what="the keys")

    @property
    def keys(self) -> T:
        return self._last_good.value

    @property
    def num_failures(self) -> int:
        """As in `LastGood`."""
        return self._last_good.num_failures

    def poll(self, adopt: Callable[[T], object] | None = None) -> T | None:
        """As in `LastGood`: the new keys, or None. Raises nothing."""
        keys = self._last_good.poll(adopt)
        if keys is not None:
            logger.info("the keys in %s changed and are in force", self.folder)
        return keys

    def _parsed(self, files: Mapping[str, str]) -> T:
        try:
            return self._parse(files)
        except ConfigError as error:
            raise ConfigError(f"{self.folder}: {error.message}") from None


class KeyWatch(Generic[T]):
    """Polls `folder` in a thread of its own, since a mount may hang; calls `post` there with each new version, and
    again while that raises."""

    def __init__(self, folder: KeyFolder[T], post: Callable[[T], None], *, interval_s: float = POLL_S) -> None:
        self._folder = folder
        self._post = post
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keys", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for a read that hangs."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._folder.poll(self._adopt)

    def _adopt(self, keys: T) -> None:
        if not self._stopped.is_set():
            self._post(keys)
