"""Where a frontend listens: text ↔ value. One text names both of its sockets.

Kinds:
    tcp://127.0.0.1:5570    ROUTER on 5570, PULL on the next port
    tcp://[::1]:5570        the same on IPv6
    tcp://frontends:5570    for engines: every address that the name has, looked up again and again
    ipc:///run/mesh         ROUTER on /run/mesh/in.sock, PULL on /run/mesh/out.sock
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from roundhouse.protocol.errors import ConfigError

MAX_IPC_PATH_BYTES = 107
"""sun_path has 108 bytes with its NUL; libzmq says only "Invalid argument" beyond it, or binds a truncated name."""

_TCP = re.compile(r"tcp://(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:/\[\]]*)):(?P<port>[0-9]{1,5})")
_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?")


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """`host`: an IP literal without brackets, `*`, or a name."""

    host: str
    port: int

    @property
    def input_endpoint(self) -> str:
        return f"tcp://{self._bracketed}:{self.port}"

    @property
    def output_endpoint(self) -> str:
        return f"tcp://{self._bracketed}:{self.port + 1}"

    def of_generation(self, generation: int) -> TcpAddress:
        """Where the server key of that generation is: here for odd ones and without keys (0), else two ports above.
        Raises `ConfigError` when there is no such port."""
        if generation == 0 or generation % 2:
            return self
        if self.port > 65532:
            raise ConfigError(f"address {self}: an even server-N needs the two ports above {self.port + 1}")
        return TcpAddress(self.host, self.port + 2)

    @property
    def is_literal(self) -> bool:
        return _literal(self.host) is not None

    @property
    def is_loopback(self) -> bool:
        literal = _literal(self.host)
        return self.host == "localhost" or (literal is not None and literal.is_loopback)

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return self.input_endpoint


@dataclass(frozen=True, slots=True)
class IpcAddress:
    """`folder`: absolute; the two socket files stand in it."""

    folder: str

    @property
    def input_endpoint(self) -> str:
        return f"ipc://{self.folder}/in.sock"

    @property
    def output_endpoint(self) -> str:
        return f"ipc://{self.folder}/out.sock"

    def __str__(self) -> str:
        return f"ipc://{self.folder}"


FrontendAddress = TcpAddress | IpcAddress


def parse_address(text: str) -> FrontendAddress:
    """Raises `ConfigError` with one line that shows `text` and what is wrong with it."""
    if text.startswith("ipc://"):
        return _parse_ipc(text)
    if text.startswith("tcp://"):
        return _parse_tcp(text)
    raise ConfigError(f"address {text!r}: expected tcp://HOST:PORT or ipc:///FOLDER")


def _parse_ipc(text: str) -> IpcAddress:
    folder = text.removeprefix("ipc://").rstrip("/")
    if not folder.startswith("/") or "\0" in folder:
        raise ConfigError(f"address {text!r}: expected an absolute folder, as in ipc:///run/mesh")
    address = IpcAddress(folder)
    length = len(address.output_endpoint.removeprefix("ipc://").encode())
    if length > MAX_IPC_PATH_BYTES:
        raise ConfigError(
            f"address {text!r}: its socket path has {length} bytes and the system allows {MAX_IPC_PATH_BYTES}; "
            "choose a shorter folder"
        )
    return address


def _parse_tcp(text: str) -> TcpAddress:
    match = _TCP.fullmatch(text)
    if match is None:
        raise ConfigError(f"address {text!r}: expected tcp://HOST:PORT, with an IPv6 host in brackets")
    port = int(match["port"])
    if not 1 <= port <= 65534:
        raise ConfigError(f"address {text!r}: the port must be between 1 and 65534 (outputs use the next one)")
    if match["v6"] is not None:
        if ":" not in match["v6"] or _literal(match["v6"]) is None:
            raise ConfigError(f"address {text!r}: not an IPv6 address")
        return TcpAddress(match["v6"], port)
    host = match["host"]
    looks_like_v4 = re.fullmatch(r"[0-9.]+", host) is not None
    if host != "*" and (_literal(host) is None if looks_like_v4 else _HOST_NAME.fullmatch(host) is None):
        raise ConfigError(f"address {text!r}: not a host")
    return TcpAddress(host, port)


def _literal(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
