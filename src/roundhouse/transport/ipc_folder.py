"""`IpcFolder`: the private folder of an ipc address, and a lock in it: libzmq takes over a socket file that is in use.

A frontend that is killed leaves its folder behind; the lock is free then, and the next fresh folder sweeps it away.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
import time

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.address import IpcAddress, parse_address

logger = logging.getLogger(__name__)

PREFIX = "roundhouse-"
SHORT_PARENT = "/tmp"

SWEEP_AFTER_S = 60.0
"""A younger folder may belong to a frontend that is just about to take its lock."""


class IpcFolder:
    """Makes the folder if need be and holds its lock until `close`, which removes it.

    Raises `ConfigError` when it is in use, not private or cannot be made.
    """

    def __init__(self, address: IpcAddress) -> None:
        self._path = address.folder
        try:
            os.makedirs(self._path, mode=0o700, exist_ok=True)
            found = os.stat(self._path)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise ConfigError(f"cannot listen on {address}: {self._path} must be yours alone (chmod 700)")
            self._lock = _take_lock(self._path, os.O_CREAT)
        except BlockingIOError:
            raise ConfigError(f"cannot listen on {address}: another frontend does") from None
        except OSError as error:
            raise ConfigError(f"cannot listen on {address}: {error.strerror}") from None

    def close(self) -> None:
        try:
            _remove(self._path)
        except OSError as error:
            logger.debug("%s stays: %s", self._path, error)
        os.close(self._lock)


def fresh_folder() -> IpcAddress:
    """A new empty folder of ours, after the leftovers of killed frontends beside it were removed.

    Below TMPDIR, or in /tmp when a socket path below TMPDIR would be too long.
    Raises `ConfigError`; then nothing is left behind.
    """
    try:
        parent = _parent()
        sweep(parent, time.time())
        path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
    except OSError as error:
        raise ConfigError(f"cannot make a folder for the mesh: {error}") from None
    try:
        return _parse(path)
    except ConfigError:
        os.rmdir(path)
        raise


def sweep(parent: str, now: float) -> None:
    """Removes the folders that killed frontends left in `parent`. now: wall clock, as files are stamped."""
    try:
        names = [name for name in os.listdir(parent) if name.startswith(PREFIX)]
    except OSError as error:
        logger.debug("%s is not swept: %s", parent, error)
        return
    for name in names:
        try:
            _sweep_one(os.path.join(parent, name), now)
        except OSError as error:
            logger.debug("%s stays: %s", name, error)


def _sweep_one(path: str, now: float) -> None:
    found = os.lstat(path)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_ours or now - found.st_mtime < SWEEP_AFTER_S:
        return
    lock = _take_lock(path)
    try:
        _remove(path)
    finally:
        os.close(lock)


def _take_lock(path: str, flags: int = 0) -> int:
    """The open lock of that folder. Raises `BlockingIOError` when somebody has it."""
    name = os.path.join(path, "lock")
    while True:
        lock = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                return lock
        except OSError:
            os.close(lock)
            raise
        os.close(lock)  # whoever had it removed it between the two calls above


def _remove(path: str) -> None:
    """To be called by who has the lock. What else is in the folder stays, and the folder with it."""
    for name in ("in.sock", "out.sock", "lock"):
        try:
            os.unlink(os.path.join(path, name))
        except FileNotFoundError:
            pass
    os.rmdir(path)


def _parent() -> str:
    parent = tempfile.gettempdir()
    try:
        _parse(os.path.join(parent, PREFIX + "x" * 8))
    except ConfigError:
        if not os.access(SHORT_PARENT, os.W_OK | os.X_OK):
            raise
        return SHORT_PARENT
    return parent


def _parse(path: str) -> IpcAddress:
    address = parse_address(f"ipc://{path}")
    assert isinstance(address, IpcAddress)
    return address
