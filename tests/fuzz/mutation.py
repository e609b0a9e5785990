"""Changes of real inputs that keep most of their structure: of bytes, of the parts of a parcel, of a tree of values.

All are functions of a `Random`, so that a seed names the change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import msgspec

from tests.fuzz.parcel import pack, unpack

Mutate = Callable[[bytes, Random], bytes]

MAX_INPUT_BYTES = 2**20
_MOST_COPIES = 300
_GROWN_BYTES = 2**16
"""What copies of a part may make of an input: mutations follow each other, and each would multiply the last."""

HOSTILE_NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 16, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**62),
    *(2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63), 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308),
    *(float("inf"), float("-inf"), float("nan"), True, False),
)
HOSTILE_TEXTS = ("", "\0", " ", "a", "../../etc/passwd", "{{ 7 * 7 }}", "é\u0301🙂", "\ufffd", "x" * 300, "$ref", "[]")
DTYPES = ("bool", "uint8", "int64", "float16", "float64", "object", "O", "V8", "U4", "datetime64[ns]", "complex128")


def hostile_value(rng: Random) -> Any:
    """A value as no peer of ours would send it there."""
    match rng.randrange(8):
        case 0 | 1 | 2:
            return rng.choice(HOSTILE_NUMBERS)
        case 3:
            return rng.choice(HOSTILE_TEXTS)
        case 4:
            return rng.choice((None, [], {}, [[]], [None], {"": ""}, {"a": [1]}))
        case 5:
            return nested(rng.choice((3, 60, 600)), rng)
        case 6:
            return rng.randbytes(rng.choice((0, 1, 16, 255, 256, 4096)))
        case _:
            return [rng.choice(DTYPES), [rng.choice((0, 1, 3, 2**16, 2**31 - 1)) for _ in range(rng.randrange(4))], b""]


def nested(depth: int, rng: Random) -> Any:
    value: Any = rng.choice((1, "a", None))
    for _ in range(depth):
        value = [value] if rng.randrange(2) else {"a": value}
    return value


def mutate_tree(value: Any, rng: Random, num_bytes: int) -> Any:
    """`value` with one node changed, taken out, doubled, or exchanged for another one; written it has `num_bytes`."""
    holders = _holders(value)
    if not holders or rng.randrange(30) == 0:
        return hostile_value(rng)
    most_copies = min(_MOST_COPIES, _GROWN_BYTES // max(1, num_bytes))
    holder = rng.choice(holders)
    key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    match rng.randrange(9):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list) and most_copies > 1:
            holder.insert(key, holder[key])
        case 2 if most_copies > 1:
            other = rng.choice(holders)
            # A copy: a part that is put into itself would have no end.
            holder[key] = deepcopy(next(iter(other.values() if isinstance(other, dict) else other)))
        case 3 if isinstance(holder[key], list):
            holder[key] = holder[key] * rng.choice((0, 2, most_copies)) if most_copies > 1 else []
        case 4 if isinstance(holder[key], int | float):
            holder[key] = holder[key] + rng.choice((-1, 1, 2, 1000))
        case 5 if isinstance(holder[key], str | bytes):
            holder[key] = holder[key] * rng.choice((0, 2, most_copies)) if most_copies > 1 else holder[key][:1]
        case 6 if isinstance(holder, dict):
            holder[rng.choice(HOSTILE_TEXTS)] = hostile_value(rng)
        case _:
            holder[key] = hostile_value(rng)
    return value


def _holders(value: Any) -> list[Any]:
    """Every container in `value` that is not empty."""
    found: list[Any] = []
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list | dict) and node:
            found.append(node)
            waiting.extend(node.values() if isinstance(node, dict) else node)
    return found


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """A few bytes changed, cut out, put in, doubled."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(6):
            case 0 if at < len(raw):
                raw[at] = rng.randrange(256)
            case 1 if at < len(raw):
                raw[at] ^= 1 << rng.randrange(8)
            case 2:
                del raw[at : at + rng.choice((1, 2, 8, 100))]
            case 3:
                raw[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
            case 4:
                length = rng.choice((1, 4, 8))
                number = rng.choice((0, 1, 2 ** (8 * length) - 1, 2 ** (8 * length - 1), 2**7))
                raw[at : at + length] = number.to_bytes(length, rng.choice(("little", "big")))
            case _:
                raw[at:at] = raw[at : at + rng.choice((4, 32, 256))]
    return bytes(raw[:MAX_INPUT_BYTES])


def mutate_msgpack(payload: bytes, rng: Random) -> bytes:
    """The payload's tree changed, or its bytes where it is none."""
    try:
        return msgspec.msgpack.encode(mutate_tree(msgspec.msgpack.decode(payload), rng, len(payload)))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError, TypeError):
        return mutate_bytes(payload, rng)


def mutate_json(text: bytes, rng: Random) -> bytes:
    """The same of JSON, with what Python's own writer says beyond it: NaN, Infinity, huge numbers, half characters."""
    if rng.randrange(4) == 0:
        return mutate_bytes(text, rng)
    try:
        value = mutate_tree(json.loads(text), rng, len(text))
        changed = json.dumps(value, default=lambda raw: raw.decode("latin-1"), ensure_ascii=bool(rng.randrange(2)))
        if rng.randrange(20) == 0:
            changed = changed.replace("1", rng.choice(("1e400", "-1e400", "9" * 400, '"\\ud800"')), 1)
        return changed.encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError, TypeError):
        return mutate_bytes(text, rng)


def mutate_parcel(parcel: bytes, rng: Random, mutate_part: Callable[[int, bytes, Random], bytes]) -> bytes:
    """A part changed by `mutate_part(place, part, rng)`, taken out, doubled, put elsewhere, or one more."""
    parts = unpack(parcel) or [b""]
    place = rng.randrange(len(parts))
    match rng.randrange(12):
        case 0:
            del parts[place]
        case 1:
            parts.insert(rng.randrange(len(parts) + 1), parts[place])
        case 2:
            parts.append(rng.randbytes(rng.choice((0, 1, 8, 256, 512))))
        case 3:
            other = rng.randrange(len(parts))
            parts[place], parts[other] = parts[other], parts[place]
        case _:
            parts[place] = mutate_part(place, parts[place], rng)
    return pack(parts)[:MAX_INPUT_BYTES]
