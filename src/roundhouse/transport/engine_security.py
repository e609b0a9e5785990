"""What an engine proves to its frontends, where it may go, and what a failed handshake most likely means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import zmq

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.address import FrontendAddress, TcpAddress, parse_address
from roundhouse.transport.keys import Credential, EngineKeys, fingerprint, server_pub_name
from roundhouse.transport.reach import check_connect


@dataclass(frozen=True, slots=True)
class Security:
    """keys: None on a mesh without. insecure_mesh: frontends on other machines are connected to all the same; exposed
    names those that are known from the start."""

    keys: EngineKeys | None = None
    insecure_mesh: bool = False
    exposed: str = ""

    def reachable(self, texts: Sequence[str]) -> list[FrontendAddress]:
        """Those that a frontend named and that can be read (a newer one may know kinds that we do not) and gone to.
        Names are left to the engine's own list."""
        found: list[FrontendAddress] = []
        for text in texts:
            try:
                address = parse_address(text)
                check_connect(address, has_keys=self.keys is not None, insecure_mesh=self.insecure_mesh)
            except ConfigError:
                continue
            if not isinstance(address, TcpAddress) or address.is_literal:
                found.append(address)
        return found


def handshake_story(event: zmq.Event, credential: Credential | None) -> str | None:
    """What a failed handshake most likely means, for people; None for other events."""
    if event is zmq.Event.HANDSHAKE_FAILED_AUTH:
        known = "this engine" if credential is None else f"this engine's key {fingerprint(credential.client.public)}"
        return f"{known} is not allowed there; it is tried again"
    if event not in (zmq.Event.HANDSHAKE_FAILED_NO_DETAIL, zmq.Event.HANDSHAKE_FAILED_PROTOCOL):
        return None
    if credential is None:
        return "the handshake failed: this engine has no keys (--mesh-keys), and that frontend asks for one"
    name = server_pub_name(credential.generation)
    return f"the handshake failed: {name} is not that frontend's key, or it has none, or its key handler is down"
