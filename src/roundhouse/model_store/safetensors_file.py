"""The safetensors file format, as much of it as checking, fingerprinting and streaming need.

A file is the header's length (8 bytes, little endian), the header (JSON: name → dtype, shape, byte range) and the data.
Written here rather than by the library so that a conversion holds one tensor in memory, never the model.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec

from roundhouse.model_store.errors import ModelFolderInvalid

MAX_HEADER_BYTES = 100 * 2**20
"""The library's own bound; it also keeps a damaged file from making us read gigabytes."""

_LFS_POINTER = b"version https://git-lfs"


_DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

_MAX_DIMENSIONS = 64
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True):
    """One tensor in the header. The sides are few, for the product of many is a number that takes minutes to make."""

    dtype: str
    shape: Annotated[list[_Size], msgspec.Meta(max_length=_MAX_DIMENSIONS)]
    data_offsets: tuple[_Size, _Size]

    @property
    def num_bytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


_header_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry_decoder = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a file to be written. `dtype` in the format's spelling: BF16, F32."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def read_header(path: Path) -> bytes:
    """The header's bytes as they stand in the file. Raises `ModelFolderInvalid` when the file is not whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ModelFolderInvalid(f"{path} is not a safetensors file: it has {size} bytes")
        (length,) = struct.unpack("<Q", prefix)
        if length > min(size - 8, MAX_HEADER_BYTES):
            raise ModelFolderInvalid(f"{path} {_why_not_safetensors(prefix + file.read(32))}")
        header = file.read(length)
    data_bytes = _data_bytes(path, header)
    if size != 8 + length + data_bytes:
        raise ModelFolderInvalid(f"{path} is cut short or damaged: {size} bytes instead of {8 + length + data_bytes}")
    return header


def _why_not_safetensors(start: bytes) -> str:
    if start.startswith(_LFS_POINTER):
        return "is a git-lfs pointer, not the weights: run `git lfs pull`"
    return "is not a safetensors file, or is cut short"


def _data_bytes(path: Path, header: bytes) -> int:
    """Where the last tensor ends, counted from the end of the header. The tensors lie one behind the other."""
    try:
        entries = _header_decoder.decode(header.decode())
        tensors = [_entry_decoder.decode(raw) for name, raw in entries.items() if name != "__metadata__"]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFolderInvalid(f"{path} is not a safetensors file: its header cannot be read") from error
    place = 0
    for begin, end in sorted(tensor.data_offsets for tensor in tensors):
        if begin != place or end < begin:
            raise ModelFolderInvalid(f"{path} is damaged: its tensors overlap or have holes between them")
        place = end
    if any(_num_bytes(tensor) not in (None, tensor.num_bytes) for tensor in tensors):
        raise ModelFolderInvalid(f"{path} is damaged: the shape of a tensor does not fit its data")
    return place


def _num_bytes(tensor: _Entry) -> int | None:
    """By shape and dtype; None for a dtype that is newer than this table, or smaller than a byte."""
    size = _DTYPE_BYTES.get(tensor.dtype)
    return None if size is None else size * prod(tensor.shape)


def write(path: Path, specs: list[TensorSpec], data: Iterable[bytes]) -> None:
    """Writes one file; `data` yields each tensor's bytes in the order of `specs` and is drawn from one at a time."""
    offset = 0
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for spec in specs:
        end = offset + spec.num_bytes
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for spec, chunk in zip(specs, data, strict=True):
            if len(chunk) != spec.num_bytes:
                raise AssertionError(f"{spec.name}: {len(chunk)} bytes instead of {spec.num_bytes}")
            file.write(chunk)
