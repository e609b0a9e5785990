"""`MsgpackEncoder` and `MsgpackDecoder`: one struct ↔ a payload and the raw buffers that ride behind it.

A numpy array travels as (dtype, shape, data). Data under `INLINE_BELOW` bytes stands in the payload, larger data is an
extra frame that is never copied: the decoded array is a view of the received frame and keeps it alive.
The schema is closed: no pickle, no object arrays, nothing that names code.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np

from roundhouse.protocol.errors import MalformedFrame

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

INLINE_BELOW = 256

MAX_DIMENSIONS = 8
"""Of an array. The product of many sides is a number of many digits, which takes minutes for what fits one message."""

_DTYPES = frozenset(
    ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
)


class MsgpackEncoder:
    """Encodes structs. Not thread-safe: one per thread."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_array)
        self._frames: list[Buffer] = []

    def encode(self, message: Any) -> list[Buffer]:
        """`message` as [payload, buffer …]; the buffers are views of the arrays in `message`."""
        self._frames = [b""]
        self._frames[0] = self._encoder.encode(message)
        return self._frames

    def encode_into(self, message: Any, payload: bytearray) -> list[Buffer]:
        """As `encode`, with the payload written over `payload`, which is resized to fit."""
        self._frames = [payload]
        self._encoder.encode_into(message, payload)
        return self._frames

    def _encode_array(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a {type(value).__name__} has no place on the wire")
        given = cast("np.ndarray[Any, np.dtype[Any]]", value)
        if given.dtype.name not in _DTYPES or given.ndim > MAX_DIMENSIONS:
            raise TypeError(f"an array of {given.ndim} dimensions of {given.dtype.name} has no place on the wire")
        array = np.ascontiguousarray(given)
        data = memoryview(array.reshape(-1).view(np.uint8).data)
        if len(data) < INLINE_BELOW:
            return (array.dtype.name, given.shape, bytes(data))
        self._frames.append(data)
        return (array.dtype.name, given.shape, len(self._frames) - 1)


class MsgpackDecoder(Generic[T]):
    """Decodes frames of one struct type. Not thread-safe: one per thread. Raises `MalformedFrame` and nothing else."""

    def __init__(self, struct: type[T]) -> None:
        self._decoder = msgspec.msgpack.Decoder(struct, dec_hook=self._decode_array)
        self._frames: Sequence[Buffer] = ()

    def decode(self, frames: Sequence[Buffer]) -> T:
        """The struct in `frames` = [payload, buffer …]; its arrays are read-only views of those buffers."""
        self._frames = frames
        try:
            return self._decoder.decode(frames[0])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as error:
            raise MalformedFrame(str(error)) from None
        finally:
            self._frames = ()

    def _decode_array(self, wanted: type, value: Any) -> Any:
        if wanted is not np.ndarray:
            raise msgspec.ValidationError(f"no decoder for {wanted}")
        match value:
            case [str() as name, [*shape], bytes() as data] if name in _DTYPES:
                pass
            case [str() as name, [*shape], int() as place] if name in _DTYPES and self._is_frame(place):
                data = self._frames[place]
            case _:
                raise msgspec.ValidationError("not an array: (dtype, shape, data) expected")
        if len(shape) > MAX_DIMENSIONS or not all(type(side) is int and 0 <= side < 2**31 for side in shape):
            raise msgspec.ValidationError("not an array's shape")
        dtype = np.dtype(name)
        if prod(shape) * dtype.itemsize != memoryview(data).nbytes:
            raise msgspec.ValidationError("an array's shape does not fit its data")
        array = np.frombuffer(data, dtype=dtype).reshape(shape)
        array.flags.writeable = False
        return array

    def _is_frame(self, place: int) -> bool:
        return type(place) is int and 0 < place < len(self._frames)
