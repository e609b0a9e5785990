"""Where an engine goes, and what it says when a handshake fails."""

import zmq

from roundhouse.transport.address import IpcAddress, TcpAddress
from roundhouse.transport.engine_security import Security, handshake_story
from roundhouse.transport.keys import Credential, EngineKeys, KeyPair, fingerprint

CLIENT = KeyPair("public", "secret")
KEYS = EngineKeys(CLIENT, {2: "server"})
NAMED = ["tcp://127.0.0.1:5570", "tcp://10.0.0.1:5570", "ipc:///run/mesh", "tcp://frontends:5570", "carrier-pigeon:7"]


def test_what_frontends_name_is_gone_to_with_keys_or_a_word() -> None:
    near = [TcpAddress("127.0.0.1", 5570), IpcAddress("/run/mesh")]
    everywhere = [near[0], TcpAddress("10.0.0.1", 5570), near[1]]
    assert Security().reachable(NAMED) == near
    assert Security(insecure_mesh=True).reachable(NAMED) == everywhere
    assert Security(KEYS).reachable(NAMED) == everywhere


def test_each_failed_handshake_has_a_story_and_nothing_else_has() -> None:
    credential = Credential(2, "server", CLIENT)
    vague = [zmq.Event.HANDSHAKE_FAILED_NO_DETAIL, zmq.Event.HANDSHAKE_FAILED_PROTOCOL]
    assert handshake_story(zmq.Event.HANDSHAKE_FAILED_AUTH, credential) == (
        f"this engine's key {fingerprint('public')} is not allowed there; it is tried again"
    )
    for event in vague:
        assert handshake_story(event, credential) == (
            "the handshake failed: server-2.pub is not that frontend's key, or it has none, or its key handler is down"
        )
        assert handshake_story(event, None) == (
            "the handshake failed: this engine has no keys (--mesh-keys), and that frontend asks for one"
        )
    assert handshake_story(zmq.Event.DISCONNECTED, credential) is None
