"""A GGUF file's metadata and tensor table, by the standard library alone.

A frontend builds the default model's tokenizer from these, and its image has no package for the format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundhouse.model_store.errors import ConversionFailed

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MAX_DIMS = 8

MAX_METADATA_BYTES = 64 * 2**20
"""Before the weights; the largest vocabularies have a sixth of it. It is read into lists of ten times its size."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` in row-major order (the file has it reversed); `offset` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def tensor_names(self) -> set[str]:
        return {tensor.name for tensor in self.tensors}


def read_gguf(path: Path) -> GgufFile:
    """All metadata, vocabulary included, and no weights. Raises `ConversionFailed` on a file that is not whole."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)
    except (struct.error, ValueError, TypeError, ArithmeticError) as error:
        raise ConversionFailed(f"{path} is not a whole GGUF file: {error}") from error
    except OSError as error:
        raise ConversionFailed(f"{path} cannot be read: {error.strerror}") from error


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    cursor = _Cursor(data, 4, min(len(data), MAX_METADATA_BYTES))
    version, num_tensors, num_keys = cursor.scalars("IQQ")
    if version not in _VERSIONS:
        raise ValueError(f"version {version} is not one of {_VERSIONS}")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(*cursor.scalars("I"))
    entries = [cursor.tensor() for _ in range(num_tensors)]
    alignment = int(metadata.get("general.alignment", 32))
    start = -(-cursor.position // alignment) * alignment
    tensors = tuple(GgufTensor(name, shape, kind, start + offset) for name, shape, kind, offset in entries)
    if any(tensor.offset >= len(data) for tensor in tensors):
        raise ValueError("its tensors lie beyond its end")
    return GgufFile(path, metadata, tensors)


@dataclass(slots=True)
class _Cursor:
    """A position in the file; every read moves it and none goes past `limit`."""

    data: mmap.mmap
    position: int
    limit: int

    def scalars(self, kinds: str) -> tuple[Any, ...]:
        layout = struct.Struct("<" + kinds)
        end = self.position + layout.size
        if end > self.limit:
            raise ValueError("its metadata run past its end")
        values = layout.unpack_from(self.data, self.position)
        self.position = end
        return values

    def string(self) -> str:
        (length,) = self.scalars("Q")
        end = self.position + length
        if end > self.limit:
            raise ValueError("a string runs past its end")
        text = self.data[self.position : end].decode()
        self.position = end
        return text

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalars(_SCALARS[kind])[0]
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"unknown value type {kind}")
        item_kind, count = self.scalars("IQ")
        if count > self.limit:
            raise ValueError("an array runs past its end")
        if item_kind in _SCALARS:
            return list(self.scalars(f"{count}{_SCALARS[item_kind]}"))
        if item_kind != _STRING:
            raise ValueError(f"unknown array type {item_kind}")
        return [self.string() for _ in range(count)]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        (num_dims,) = self.scalars("I")
        if num_dims > _MAX_DIMS:
            raise ValueError(f"tensor {name} has {num_dims} dimensions")
        dims = self.scalars(f"{num_dims}Q")
        kind, offset = self.scalars("IQ")
        return name, tuple(reversed(dims)), kind, offset
