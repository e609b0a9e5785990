"""Ports that were free a moment ago; bind them soon."""

from __future__ import annotations

import random
import socket

BELOW_THE_KERNELS = (20_000, 32_000)


def free_tcp_port(host: str = "127.0.0.1") -> int:
    with _bound(host, 0) as probe:
        return probe.getsockname()[1]


def free_port_pair(host: str) -> int:
    """A port that was free, as was the one after it."""
    return free_port_run(host, 2)


def free_port_run(host: str, count: int) -> int:
    """A port that was free, as were the `count` - 1 after it: below those that the kernel gives to whoever connects, so
    that nobody takes one before it is bound, however late."""
    while True:
        port = random.randrange(*BELOW_THE_KERNELS)
        try:
            for offset in range(count):
                _bound(host, port + offset).close()
        except OSError:
            continue
        return port


def _bound(host: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound
