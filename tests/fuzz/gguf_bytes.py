"""Metadata of any shape → a GGUF file without tensors: what a stranger's writer may put into one."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

_INT32, _UINT32, _BOOL, _STRING, _ARRAY, _UINT64, _INT64, _FLOAT64 = 5, 4, 7, 8, 9, 10, 11, 12


def file_of(metadata: Mapping[str, Any], *, num_tensors: int = 0, rest: bytes = b"") -> bytes:
    """`rest` stands behind the metadata: a tensor table, if `num_tensors` are told."""
    out = b"GGUF" + struct.pack("<IQQ", 3, num_tensors, len(metadata))
    for key, value in metadata.items():
        kind, data = _value(value)
        out += _string(str(key)) + struct.pack("<I", kind) + data
    return out + rest


def _value(value: Any) -> tuple[int, bytes]:
    """Its type and its bytes; what GGUF has no type for becomes a text."""
    match value:
        case bool():
            return _BOOL, struct.pack("<?", value)
        case int() if 0 <= value < 2**32:
            return _UINT32, struct.pack("<I", value)
        case int() if 0 <= value < 2**64:
            return _UINT64, struct.pack("<Q", value)
        case int() if -(2**63) <= value < 0:
            return _INT64, struct.pack("<q", value)
        case float():
            return _FLOAT64, struct.pack("<d", value)
        case list():
            return _ARRAY, _array(value)
        case _:
            return _STRING, _string(value if isinstance(value, str) else repr(value))


def _array(values: list[Any]) -> bytes:
    if values and all(type(value) is int and -(2**31) <= value < 2**31 for value in values):
        return struct.pack(f"<IQ{len(values)}i", _INT32, len(values), *values)
    if values and all(type(value) is float for value in values):
        return struct.pack(f"<IQ{len(values)}d", _FLOAT64, len(values), *values)
    if values and all(isinstance(value, list) for value in values):
        return struct.pack("<IQ", _ARRAY, len(values)) + b"".join(map(_array, values))
    return struct.pack("<IQ", _STRING, len(values)) + b"".join(_value_as_string(value) for value in values)


def _value_as_string(value: Any) -> bytes:
    return _string(value if isinstance(value, str) else repr(value))


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw
