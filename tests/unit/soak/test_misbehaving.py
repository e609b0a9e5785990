"""The same seed gives the same clients, and every manner of misbehaving is among them."""

from __future__ import annotations

from itertools import islice

import msgspec
import pytest

from tests.soak.misbehaving import Misbehaviour, misbehaviours


def first_misbehaviours(seed: int, count: int = 600) -> list[Misbehaviour]:
    return list(islice(misbehaviours(seed, "m"), count))


def test_the_seed_decides_everything() -> None:
    assert first_misbehaviours(1) == first_misbehaviours(1)
    assert first_misbehaviours(1)[:5] != first_misbehaviours(2)[:5]


def test_every_manner_of_misbehaving() -> None:
    statuses = {m.kind: m.status for m in first_misbehaviours(1)}
    assert statuses == {
        "leaves mid-stream": 0,
        "vanishes before the answer": 0,
        "vanishes and comes back": 0,
        "half of a head": 0,
        "half of a body": 0,
        "body that stalls": 408,
        "slow reader": 0,
        "bad: malformed JSON": 400,
        "bad: not UTF-8": 400,
        "bad: unknown model": 404,
        "bad: wrong type": 400,
        "bad: value out of range": 400,
        "bad: too many choices": 400,
        "bad: prompt too long": 400,
        "bad: prompt far too long": 400,
        "bad: body too large": 413,
    }


def test_malformed_bodies_are_malformed() -> None:
    for misbehaviour in first_misbehaviours(1):
        if misbehaviour.kind == "bad: malformed JSON":
            with pytest.raises(msgspec.DecodeError):
                msgspec.json.decode(misbehaviour.encode())
