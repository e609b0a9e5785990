"""`LastGood`: a value made of files that change under a running process. What is broken changes nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from roundhouse.protocol.errors import ConfigError

KUBERNETES_DATA = "..data"
"""The link that a kubelet swaps when a mounted Secret changes: behind it are all files of one version."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


def is_mounted(folder: Path) -> bool:
    """Whether a kubelet mounted it."""
    return (folder / KUBERNETES_DATA).is_symlink()


def read_version(folder: Path, read: Callable[[Path], T]) -> T:
    """`read` of a folder whose files are all of one version, even if a mounted Secret changes meanwhile; then it may be
    called again. Raises `ConfigError` for every `OSError`."""
    version = folder
    while True:
        try:
            # Read once: what comes is of one version, even if the link is swapped meanwhile.
            version = _version(folder)
            return read(version)
        except OSError as error:
            # A kubelet removes the old version as soon as it has swapped the link.
            if _has_moved_on(folder, version):
                continue
            raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None


def _version(folder: Path) -> Path:
    # Not resolved any further: a link that leads round in a circle is an `OSError` of who opens it.
    return folder / os.readlink(folder / KUBERNETES_DATA) if is_mounted(folder) else folder


def _has_moved_on(folder: Path, version: Path) -> bool:
    try:
        return _version(folder) != version
    except OSError:
        return False


class LastGood(Generic[T]):
    """`value`: parsed from the last good texts. The first ones are read at once: raises `ConfigError` when they are not
    good.

    read: the texts by name. what: for people, in the plural. num_failures: versions that were not good, each counted
    and logged once; the last good one stays in force. It may be read from anywhere.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, str]], parse: Callable[[Mapping[str, str]], T], *, what: str
    ) -> None:
        self.num_failures = 0
        self._read = read
        self._parse = parse
        self._what = what
        self._failure: str | None = None
        self._texts = read()
        self.value = parse(self._texts)

    def poll(self, adopt: Callable[[T], object] | None = None) -> T | None:
        """The new value; None while nothing changed, or what changed is not good. Raises nothing: who polls would stop,
        and what is taken away later would stay in force for ever.

        adopt: is called with the new value. While it raises, that version counts as not good and is tried again.
        """
        try:
            texts = self._read()
            if texts == self._texts:
                self._failure = None
                return None
            value = self._parse(texts)
            if adopt is not None:
                adopt(value)
        except ConfigError as error:
            self._fail(error.message)
            return None
        except Exception as error:
            self._fail(repr(error), is_unknown=True)
            return None
        self._failure, self._texts, self.value = None, texts, value
        return value

    def _fail(self, failure: str, *, is_unknown: bool = False) -> None:
        if failure != self._failure:
            self._failure = failure
            self.num_failures += 1
            logger.error("%s stay as they are: %s", self._what, failure, exc_info=is_unknown)
