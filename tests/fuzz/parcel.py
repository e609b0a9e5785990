"""Several byte strings as one, for inputs that have parts. Every byte string is a parcel, so that no mutation is lost:
each part is its length (4 bytes, little endian) and its bytes, and a last one that is cut short is what is there of it.
"""

from __future__ import annotations

from collections.abc import Iterable

_LENGTH_BYTES = 4


def pack(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "little") + part for part in parts)


def unpack(parcel: bytes) -> list[bytes]:
    """The parts; `unpack(pack(parts)) == parts`."""
    parts: list[bytes] = []
    at = 0
    while at < len(parcel):
        length = int.from_bytes(parcel[at : at + _LENGTH_BYTES], "little")
        at += _LENGTH_BYTES
        parts.append(parcel[at : at + length])
        at += length
    return parts
