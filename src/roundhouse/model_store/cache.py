"""The folder that converted models are kept in, and the rule that each is built once and never half.

An entry is built in `<entry>.partial-<pid>` under a file lock, flushed to the disk and renamed: an entry that exists is
whole. Processes that want the same entry wait for the lock. Its name carries the layout version and a key of the
source.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from roundhouse.model_store.errors import CacheUnusable
from roundhouse.model_store.progress import ProgressEvent, Report

LAYOUT = "v1"
"""Part of every entry's name; goes up when what a conversion writes changes, so that old entries are not found."""

_PARTIAL = ".partial-"
_SAMPLE_BYTES = 2**20
_POLL_S = 0.2

Build = Callable[[Path, int], None]
"""Fills the folder it is given. The lock's descriptor comes along so that a child process can hold the lock as well."""


def default_cache_dir() -> Path:
    """$ROUNDHOUSE_CACHE, or roundhouse under $XDG_CACHE_HOME, or under ~/.cache."""
    if own := os.environ.get("ROUNDHOUSE_CACHE"):
        return Path(own).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "roundhouse"
    except RuntimeError as error:
        raise CacheUnusable("there is no home folder to keep models in; set ROUNDHOUSE_CACHE to a folder") from error


def file_key(path: Path, *, with_mtime: bool) -> str:
    """A key of a file's content from its size and both ends: reading 70 GB whole at each start would take a minute.

    With the modification time as well where users may replace the file: a fine-tune can have the same size and ends.
    """
    stat = path.stat()
    digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns if with_mtime else 0}".encode())
    with path.open("rb") as file:
        digest.update(file.read(_SAMPLE_BYTES))
        file.seek(max(0, stat.st_size - _SAMPLE_BYTES))
        digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def entry_name(stem: str, key: str) -> str:
    """Readable first, exact after. `stem` may hold anything a user typed."""
    readable = re.sub(r"[^A-Za-z0-9_.-]", "-", stem).lstrip(".")[:64]
    return f"{readable or 'model'}-{LAYOUT}-{key[:16]}"


def build_once(root: Path, name: str, build: Build, *, is_whole: Callable[[Path], bool], report: Report) -> Path:
    """The entry's folder, built by exactly one of the processes that ask at the same time.

    An entry that fails `is_whole` (somebody deleted a part) is built anew. Raises `CacheUnusable` when the folder
    cannot be written; whatever ends `build` early, the partial folder is gone afterwards.
    """
    models = root / "models"
    final = models / name
    if final.is_dir() and is_whole(final):
        return final
    try:
        models.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(models, besides=name)
        with _locked(models / f".{name}.lock", f"waiting for another process to prepare {name}", report) as lock_fd:
            if not (final.is_dir() and is_whole(final)):
                _build(models, name, build, lock_fd)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CacheUnusable(
            f"the model cache {root} cannot be written: {reason}; set ROUNDHOUSE_CACHE to a folder with room"
        ) from error
    return final


def _build(models: Path, name: str, build: Build, lock_fd: int) -> None:
    """Holding the lock, so every partial folder of this entry was left by a process that is gone."""
    final = models / name
    for leftover in models.glob(f"{name}{_PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.rmtree(final, ignore_errors=True)
    partial = models / f"{name}{_PARTIAL}{os.getpid()}"
    partial.mkdir()
    try:
        build(partial, lock_fd)
        for file in partial.iterdir():
            _fsync(file)
        _fsync(partial)
        partial.rename(final)
        _fsync(models)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _remove_leftovers(models: Path, *, besides: str) -> None:
    """Partial folders whose builder was killed: their lock is free. Nobody else would ever remove these."""
    for partial in models.glob(f"*{_PARTIAL}*"):
        name = partial.name.rpartition(_PARTIAL)[0]
        if name == besides:
            continue
        fd = os.open(models / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if _try_lock(fd):
                shutil.rmtree(partial, ignore_errors=True)
        finally:
            os.close(fd)


@contextmanager
def _locked(path: Path, waiting: str, report: Report) -> Iterator[int]:
    """Closed, never unlocked: the lock belongs to the open file, and a converter that outlives us still builds."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _try_lock(fd):
            report(ProgressEvent(waiting))
            while not _try_lock(fd):
                time.sleep(_POLL_S)
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _fsync(path: Path) -> None:
    if path.is_symlink():
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
