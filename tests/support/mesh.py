"""Values of the mesh with defaults, for tests of both its sides."""

from __future__ import annotations

from typing import Any

import msgspec

from roundhouse.frontend.engine_set import EngineSet, Welcome
from roundhouse.frontend.membership import Member
from roundhouse.protocol.identity import EngineIdentity, routing_id
from roundhouse.protocol.messages import EngineCoreRequest, Hello
from roundhouse.protocol.sampling import SamplingParams

HELLO = Hello("engine-0", (1, 1), bytes(16), [1], "echo", "key", 16, 100, 2048, 64, 2**26)


def hello(identity: str = "engine-0", nonce: int = 0, **changes: Any) -> Hello:
    return msgspec.structs.replace(HELLO, identity=identity, nonce=bytes([nonce] * 16), **changes)


def routing_id_of(hello: Hello) -> bytes:
    return routing_id(EngineIdentity(hello.identity), hello.nonce)


def request(
    request_id: str = "r", *, prompt: list[int] | None = None, max_tokens: int = 1, **fields: Any
) -> EngineCoreRequest:
    return EngineCoreRequest(request_id, prompt or [1, 2, 3], SamplingParams(max_tokens=max_tokens), 0.0, **fields)


def admit(engines: EngineSet, greeting: Hello, now: float = 0.0) -> Member:
    """Both halves of `greeting`; the member that they make, which was sent its ADMITTED."""
    engines.on_router_hello(routing_id_of(greeting), greeting, now)
    welcome = engines.on_pull_hello(greeting, now)[-1]
    assert isinstance(welcome, Welcome)
    welcome.member.count_control_frame()
    return welcome.member
