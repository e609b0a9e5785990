from time import process_time

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.serial import INLINE_BELOW, MAX_DIMENSIONS, MsgpackDecoder, MsgpackEncoder

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]


class Holder(msgspec.Struct, array_like=True):
    array: np.ndarray


def round_trip(array: np.ndarray) -> np.ndarray:
    return MsgpackDecoder(Holder).decode(MsgpackEncoder().encode(Holder(array))).array


@given(hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12)))
def test_every_array_comes_back_as_it_was(array: np.ndarray) -> None:
    back = round_trip(array)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not back.flags.writeable


@pytest.mark.parametrize(
    "array", [np.arange(400)[::2], np.arange(400).reshape(20, 20).T, np.asfortranarray(np.eye(20))]
)
def test_arrays_that_are_not_contiguous_arrive_in_order(array: np.ndarray) -> None:
    assert round_trip(array).tolist() == array.tolist()


def test_a_large_array_is_never_copied() -> None:
    array = np.arange(INLINE_BELOW, dtype=np.uint8)
    frames = MsgpackEncoder().encode(Holder(array))
    assert len(frames) == 2
    assert np.shares_memory(np.frombuffer(frames[1], np.uint8), array)
    assert np.shares_memory(MsgpackDecoder(Holder).decode(frames).array, array)


def test_a_small_array_stands_in_the_payload() -> None:
    assert len(MsgpackEncoder().encode(Holder(np.zeros(INLINE_BELOW - 1, np.uint8)))) == 1


@pytest.mark.parametrize(
    "value", [np.array([object()]), np.array(["text"]), np.array([1 + 2j]), {1, 2}.__iter__(), print]
)
def test_what_has_no_place_on_the_wire_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        MsgpackEncoder().encode(Holder(value))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        ["object", [1], b"12345678"],
        ["<i4", [1], b"1234"],
        ["int32", [2], b"1234"],
        ["int32", [-1], b""],
        ["int32", [1.0], b"1234"],
        ["int32", [True], b"1234"],
        ["int32", [2**40, 0], b""],
        ["int32", [1], 0],
        ["int32", [1], 2],
        ["int32", [1], -1],
        ["int32", [1], True],
        ["int32", 1, b"1234"],
        ["int32", [1] * 100, b"1234"],
        ["int32", [1]],
        "int32",
        None,
    ],
)
def test_what_is_not_an_array_is_malformed(value: object) -> None:
    with pytest.raises(MalformedFrame):
        MsgpackDecoder(Holder).decode([msgspec.msgpack.encode([value]), b"1234"])


@pytest.mark.parametrize("shape", [[1] * (MAX_DIMENSIONS + 1), [2**31 - 1] * 100_000])
def test_an_array_has_few_dimensions(shape: list[int]) -> None:
    """The product of a hundred thousand sides has three million bits and takes seconds."""
    before_s = process_time()
    with pytest.raises(MalformedFrame):
        MsgpackDecoder(Holder).decode([msgspec.msgpack.encode([["uint8", shape, b"x"]])])
    assert process_time() - before_s < 1
    with pytest.raises(TypeError, match="9 dimensions"):
        MsgpackEncoder().encode(Holder(np.zeros([1] * (MAX_DIMENSIONS + 1))))
