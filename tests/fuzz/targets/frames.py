"""Frames of both directions → messages, or `MalformedFrame`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random
from typing import Any

import numpy as np

from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.frames import ENGINE_TYPES, FRONTEND_TYPES, FrameDecoder, FrameEncoder, size_of
from tests.fuzz.mutation import mutate_bytes, mutate_msgpack, mutate_parcel
from tests.fuzz.parcel import pack, unpack
from tests.fuzz.target import Target, expect
from tests.golden.wire.samples import ENGINE_MESSAGES, FRONTEND_MESSAGES, read_golden

MAX_BYTES = 2**20
"""The bound of both peers here: of what was read from so much, what is written again may not be much longer."""

MAX_CHECKED_BYTES = 2**16
"""The comparison takes ten times as long as the decoder, whose time is bounded here."""


def mutate_frame(place: int, frame: bytes, rng: Random) -> bytes:
    """Of [type byte, payload, buffer …] the type changes to another one, the payload as a tree, the rest as bytes."""
    if place == 0:
        return rng.choice([*FRONTEND_TYPES.values(), *ENGINE_TYPES.values(), b"", b"\x7f"])
    return mutate_msgpack(frame, rng) if place == 1 and rng.randrange(5) else mutate_bytes(frame, rng)


def mutate_frames(parcel: bytes, rng: Random) -> bytes:
    return mutate_parcel(parcel, rng, mutate_frame)


def _target(name: str, types: dict[type, bytes], samples: Iterable[str]) -> Target:
    decoder, encoder = FrameDecoder(types), FrameEncoder(types)

    def run(data: bytes) -> bool:
        frames = unpack(data)
        try:
            message = decoder.decode(frames, max_bytes=MAX_BYTES)
        except MalformedFrame:
            return False
        if len(data) > MAX_CHECKED_BYTES:
            return True
        expect(type(message) in types, f"a {type(message).__name__} is no message of this direction")
        again = [bytes(frame) for frame in encoder.encode(message)]
        expect(size_of(again) <= 16 * MAX_BYTES, "a message grew on its way through")
        expect(_is_same(decoder.decode(again), message), "a message changed on its way through")
        return True

    return Target(
        name=name,
        run=run,
        mutate=mutate_frames,
        seeds=lambda: [(sample, pack(read_golden(sample))) for sample in samples],
    )


def _is_same(left: Any, right: Any) -> bool:
    """Equal, where a NaN equals itself and arrays are compared by dtype, shape and bytes."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
    if type(left) is not type(right):
        return False
    if hasattr(left, "__struct_fields__"):
        return all(_is_same(getattr(left, name), getattr(right, name)) for name in left.__struct_fields__)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, dict):
        return _is_same(list(left), list(right)) and _is_same(list(left.values()), list(right.values()))
    return left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


TO_ENGINE = _target("frames_to_engine", FRONTEND_TYPES, FRONTEND_MESSAGES)
TO_FRONTEND = _target("frames_to_frontend", ENGINE_TYPES, ENGINE_MESSAGES)
