"""`Resolver`: looks host names up again and again, in a thread of its own, since a lookup may hang for many seconds."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence

from roundhouse.transport.address import TcpAddress

INTERVAL_S = 3.0

Resolve = Callable[[str], list[str]]
"""Host name → IP literals; empty when the name does not exist. Raises `OSError` when there is no answer just now."""

logger = logging.getLogger(__name__)


def resolve_host(host: str) -> list[str]:
    """All addresses of `host` by the system's resolver, in its order."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
            return []
        raise
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Resolver:
    """Calls `post(name, addresses)` after each answer; without one it keeps quiet, and the last answer stays good."""

    def __init__(
        self,
        names: Sequence[TcpAddress],
        resolve: Resolve,
        post: Callable[[TcpAddress, list[TcpAddress]], None],
        *,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._names = names
        self._resolve = resolve
        self._post = post
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="resolver", daemon=True)

    def start(self) -> None:
        if self._names:
            self._thread.start()

    def stop(self) -> None:
        """Does not wait for a lookup that hangs."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for name in self._names:
                try:
                    hosts = self._resolve(name.host)
                except OSError as error:
                    logger.debug("no answer for %s: %s", name.host, error)
                    continue
                self._post(name, [TcpAddress(host, name.port) for host in hosts])
            self._stopped.wait(self._interval_s)
