"""Which mesh addresses need keys, and what is said of those that go without. Pure."""

from __future__ import annotations

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.address import FrontendAddress, TcpAddress

WARN_EVERY_S = 600.0


def is_exposed(address: FrontendAddress) -> bool:
    """Whether others than this machine could be at its other end. A name may stand for anything, but localhost."""
    return isinstance(address, TcpAddress) and not address.is_loopback


def check_bind(address: FrontendAddress, *, has_keys: bool, insecure_mesh: bool) -> None:
    """Raises `ConfigError` for what a frontend may not listen on."""
    if not isinstance(address, TcpAddress):
        return
    if not (address.is_literal or address.host in ("*", "localhost")):
        raise ConfigError(f"cannot listen on {address}: a frontend binds an IP address, localhost or *")
    if is_exposed(address) and not (has_keys or insecure_mesh):
        raise ConfigError(
            f"cannot listen on {address}: others could reach it, and the mesh asks for no key; "
            "make keys with `roundhouse keys new` and give --mesh-keys, bind a loopback address or ipc, "
            "or allow it with --insecure-mesh"
        )


def check_connect(address: FrontendAddress, *, has_keys: bool, insecure_mesh: bool) -> None:
    """Raises `ConfigError` for what an engine may not connect to."""
    if is_exposed(address) and not (has_keys or insecure_mesh):
        raise ConfigError(
            f"cannot connect to {address}: it is not on this machine, and without a key anybody on the way could read "
            "and change everything; give --mesh-keys, or allow it with --insecure-mesh"
        )


def insecure_warning(addresses: str) -> str:
    return (
        f"INSECURE MESH: {addresses} without keys: prompts and answers travel unencrypted, and whoever reaches the "
        "port can be an engine. `roundhouse keys new` makes keys, --mesh-keys uses them"
    )
