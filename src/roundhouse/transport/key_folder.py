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

POLL_S = 1.0
MAX_FILE_BYTES = 2**22
KUBERNETES_DATA = "..data"
"""The link that a kubelet swaps when a mounted Secret changes: behind it are all files of one version."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


def read_key_files(folder: Path) -> dict[str, str]:
    """Name → text of the files that mean something.

    Raises `ConfigError`, also for a secret key that others than its owner may read. In a mounted Secret the modes are
    the volume's (with fsGroup the group reads), and the container is alone with it: they are not looked at there.
    """
    link = folder / KUBERNETES_DATA
    is_mounted = link.is_symlink()
    while True:
        # Resolved once: what is read is of one version, even if the link is swapped meanwhile.
        version = link.resolve() if is_mounted else folder
        try:
            names = sorted(name for name in os.listdir(version) if is_key_file(name))
            return {name: _read(version / name, check_mode=is_secret(name) and not is_mounted) for name in names}
        except OSError as error:
            # A kubelet removes the old version as soon as it has swapped the link.
            if is_mounted and link.resolve() != version:
                continue
            raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None


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
    """`keys`: of the last good version. The first one is read at once: raises `ConfigError` when it is not good.

    num_failures: versions that were not good, each counted and logged once; the last good one stays in force. It may
    be read from anywhere.
    """

    def __init__(self, folder: Path, parse: Callable[[Mapping[str, str]], T]) -> None:
        self.folder = folder
        self.num_failures = 0
        self._parse = parse
        self._files = read_key_files(folder)
        self._failure: str | None = None
        self.keys = self._parsed(self._files)

    def poll(self) -> T | None:
        """The new keys; None while nothing changed, or what changed is not good."""
        try:
            files = read_key_files(self.folder)
            if files == self._files:
                self._failure = None
                return None
            keys = self._parsed(files)
        except ConfigError as error:
            if error.message != self._failure:
                self._failure = error.message
                self.num_failures += 1
                logger.error("the keys are not read again, those from before stay in force: %s", error.message)
            return None
        self._failure, self._files, self.keys = None, files, keys
        logger.info("the keys in %s changed and are in force", self.folder)
        return keys

    def _parsed(self, files: Mapping[str, str]) -> T:
        try:
            return self._parse(files)
        except ConfigError as error:
            raise ConfigError(f"{self.folder}: {error.message}") from None


class KeyWatch(Generic[T]):
    """Polls `folder` in a thread of its own, since a mount may hang; calls `post` there with each new version."""

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
            keys = self._folder.poll()
            if keys is not None and not self._stopped.is_set():
                self._post(keys)
