import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roundhouse.model_store.errors import ConversionFailed
from roundhouse.model_store.gguf_file import MAX_METADATA_BYTES, GgufFile, GgufTensor, read_gguf
from tests.unit.model_store import tiny

KEYS = {"general.architecture": "llama", "a": 7, "b": 0.5, "c": True, "d": [1, -2], "e": ["x", "é"]}


def test_metadata_and_tensor_table(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", KEYS, {"first": (2, 3), "second": (4,)})
    start = path.stat().st_size - 64
    assert read_gguf(path) == GgufFile(
        path, KEYS, (GgufTensor("first", (2, 3), 0, start), GgufTensor("second", (4,), 0, start + 32))
    )
    assert read_gguf(path).architecture == "llama"
    assert read_gguf(path).tensor_names == {"first", "second"}


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML" + bytes(100))
    with pytest.raises(ConversionFailed, match="is not a whole GGUF file: it does not begin with GGUF"):
        read_gguf(tmp_path / "m.gguf")
    with pytest.raises(ConversionFailed, match="cannot be read: No such file or directory"):
        read_gguf(tmp_path / "absent.gguf")


@pytest.mark.parametrize("alignment", [0, [1], "x"])
def test_an_alignment_that_is_none_is_refused(tmp_path: Path, alignment: object) -> None:
    tiny.write_gguf(tmp_path / "m.gguf", {**KEYS, "general.alignment": alignment})
    with pytest.raises(ConversionFailed, match="is not a whole GGUF file"):
        read_gguf(tmp_path / "m.gguf")


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = tiny.write_gguf(tmp_path / "m.gguf", KEYS, {"first": (1,)}).read_bytes()
    for length in range(len(whole) - 32):
        (tmp_path / "m.gguf").write_bytes(whole[:length])
        with pytest.raises(ConversionFailed):
            read_gguf(tmp_path / "m.gguf")


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(4, 250), byte=st.integers(0, 255))
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, position: int, byte: int) -> None:
    damaged = bytearray(tiny.write_gguf(tmp_path / "m.gguf", KEYS, {"first": (1,)}).read_bytes())
    damaged[position] = byte
    (tmp_path / "m.gguf").write_bytes(damaged)
    try:
        read_gguf(tmp_path / "m.gguf")
    except ConversionFailed:
        pass


def test_metadata_beyond_any_vocabulary_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 0, MAX_METADATA_BYTES - 4))
        file.truncate(2 * MAX_METADATA_BYTES)
    with pytest.raises(ConversionFailed, match="its metadata run past its end"):
        read_gguf(path)
