"""Both halves of Hellos in any order → who is admitted. What is refused leaves the set as it was."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

from roundhouse.frontend.engine_set import EngineSet, Lost, Refuse, Welcome
from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.frames import ENGINE_TYPES, FrameDecoder, FrameEncoder
from roundhouse.protocol.messages import Hello
from tests.fuzz.mutation import mutate_bytes, mutate_msgpack, mutate_parcel
from tests.fuzz.parcel import pack, unpack
from tests.fuzz.target import Target, expect
from tests.support.mesh import hello, routing_id_of

_PUSH = b""
"""In the place of a routing id: this half came by PULL."""

_decoder = FrameDecoder(ENGINE_TYPES)


def run(data: bytes) -> bool:
    """Parts in pairs: a routing id or `_PUSH`, and the payload of a Hello."""
    engines = EngineSet("frontend-1", count(1))
    parts = unpack(data)
    num_admitted = 0
    for place, (routing_id, payload) in enumerate(zip(parts[::2], parts[1::2], strict=False)):
        before = _facts(engines)
        now = place / 4
        try:
            greeting = _decoder.decode([ENGINE_TYPES[Hello], payload])
            if routing_id == _PUSH:
                effects = engines.on_pull_hello(greeting, now)
            else:
                effects = engines.on_router_hello(routing_id, greeting, now)
        except MalformedFrame:
            expect(_facts(engines) == before, "a Hello that was refused changed who is admitted")
            continue
        num_welcomed = sum(isinstance(effect, Welcome) for effect in effects)
        num_lost = sum(isinstance(effect, Lost) for effect in effects)
        expect(engines.num_members == len(before) + num_welcomed - num_lost, "members come and go by effects only")
        if any(isinstance(effect, Refuse) and effect.refused.reason != "session_over" for effect in effects):
            expect(_facts(engines) == before, "a Hello that was refused changed who is admitted")
        num_admitted += num_welcomed
    _check_members(engines)
    return num_admitted > 0


def _facts(engines: EngineSet) -> list[Any]:
    return [(m.session_id, m.engine_index, m.routing_id, m.hello, m.state) for m in engines.members()]


def _check_members(engines: EngineSet) -> None:
    members = engines.members()
    for name, values in {
        "index": [m.engine_index for m in members],
        "identity": [m.hello.identity for m in members],
        "routing id": [m.routing_id for m in members],
        "session": [m.session_id for m in members],
    }.items():
        expect(len(set(values)) == len(values), f"two engines have one {name}: {values}")
    for member in members:
        expect(routing_id_of(member.hello) == member.routing_id, "an engine was admitted under another one's name")
        expect(member.is_alive, "a member that is over is still there")


def mutate(parcel: bytes, rng: Random) -> bytes:
    return mutate_parcel(parcel, rng, _mutate_part)


def _mutate_part(place: int, part: bytes, rng: Random) -> bytes:
    if place % 2:
        return mutate_msgpack(part, rng)
    return rng.choice((_PUSH, mutate_bytes(part, rng)))


def halves(*greetings: Hello) -> list[bytes]:
    """Of each Hello the half by ROUTER, then the one by PULL."""
    encoder = FrameEncoder(ENGINE_TYPES)
    parts: list[bytes] = []
    for greeting in greetings:
        payload = bytes(encoder.encode(greeting)[1])
        parts += [routing_id_of(greeting), payload, _PUSH, payload]
    return parts


def _seeds() -> list[tuple[str, bytes]]:
    first, again = hello("engine-0"), hello("engine-0", nonce=1, epoch=(2, 1))
    return [
        ("one", pack(halves(first))),
        ("a_higher_epoch_then_the_lower_one", pack(halves(first, again, hello("engine-0", nonce=2)))),
        ("two_engines", pack(halves(first, hello("engine-ü", nonce=3, dp_group="g", dp_rank=1, dp_size=2)))),
        ("push_first", pack([*halves(first)[2:], *halves(first)[:2]])),
    ]


HELLO = Target("hello", run, mutate, _seeds)
