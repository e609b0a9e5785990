"""Listening and serving HTTP. The port is taken first, and `server.door` answers at it until the app is there."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn

from roundhouse.cli.http_protocol import BoundedHttpProtocol
from roundhouse.protocol import limits
from roundhouse.protocol.errors import ConfigError

KEEP_ALIVE_S = 75
BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `ConfigError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {host}: {getattr(error, 'strerror', None) or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` means every address, as people expect of a server that has one listening socket.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        # With SO_REUSEADDR two sockets may bind one port, but only one may listen at it.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        hint = "; is another server running?" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(f"cannot listen on {url_host(host)}:{port}: {error.strerror}{hint}") from None
    listener.setblocking(False)
    return listener


def url_host(host: str) -> str:
    """`host` as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def max_api_connections() -> int:
    """What the API's port takes, of the files that the process may have open (`descriptors` raised that before).

    A connection over it is told so. One for which there is no file would wait in the socket's queue and be told
    nothing, and the mesh's sockets and a model's files need theirs.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    share = limits.MAX_HTTP_CONNECTIONS if soft == resource.RLIM_INFINITY else int(soft * limits.HTTP_CONNECTIONS_SHARE)
    return min(limits.MAX_HTTP_CONNECTIONS, share)


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the command decides what a signal means."""

    def __init__(self, app: Any, *, max_connections: int | None = None) -> None:
        """max_connections: at its port; one over it is told so and closed. None: the API's (`max_api_connections`)."""
        if max_connections is None:
            max_connections = max_api_connections()
        protocol: Any = partial(BoundedHttpProtocol, max_connections=max_connections)
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=5,
                server_header=False,
                http=protocol,
                ws="none",
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop(self) -> None:
        self.should_exit = True
