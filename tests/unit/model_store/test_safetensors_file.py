import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from roundhouse.model_store.errors import ModelFolderInvalid
from roundhouse.model_store.safetensors_file import MAX_HEADER_BYTES, TensorSpec, read_header, write


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3, dtype=np.int64)
    specs = [TensorSpec("first", "F32", (2, 3), 24), TensorSpec("second", "I64", (3,), 24)]
    write(tmp_path / "a.safetensors", specs, [first.tobytes(), second.tobytes()])
    loaded = load_file(tmp_path / "a.safetensors")
    assert loaded.keys() == {"first", "second"}
    np.testing.assert_array_equal(loaded["first"], first)
    np.testing.assert_array_equal(loaded["second"], second)


def test_the_header_of_a_file_by_the_library(tmp_path: Path) -> None:
    save_file({"a": np.zeros((2, 2), np.float32)}, tmp_path / "a.safetensors")
    header = json.loads(read_header(tmp_path / "a.safetensors"))
    assert header == {"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not a safetensors file: it has 0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-lfs pointer, not the weights"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1), "is not a safetensors file, or is cut short"),
        (struct.pack("<Q", 2) + b"[]", "its header cannot be read"),
        (struct.pack("<Q", 2) + b"{!", "its header cannot be read"),
        (struct.pack("<Q", 8) + b'{"a": 1}', "its header cannot be read"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFolderInvalid, match=complaint):
        read_header(path)


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, [TensorSpec("a", "U8", (4,), 4)], [b"1234"])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelFolderInvalid) as caught:
        read_header(path)
    assert caught.value.message == f"{path} is cut short or damaged: {len(whole) - 1} bytes instead of {len(whole)}"


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ({"a": ("U8", [8], [0, 8]), "b": ("U8", [8], [4, 12])}, "its tensors overlap or have holes"),
        ({"a": ("U8", [4], [0, 4]), "b": ("U8", [4], [8, 12])}, "its tensors overlap or have holes"),
        ({"a": ("U8", [12], [0, 12]), "b": ("U8", [8], [12, 4])}, "its tensors overlap or have holes"),
        ({"a": ("F32", [4], [0, 12])}, "the shape of a tensor does not fit its data"),
        ({"a": ("U8", [-12], [0, 12])}, "its header cannot be read"),
        ({"a": ("U8", [12], [0, [12]])}, "its header cannot be read"),
        ({"a": ("U8", [12], [0, 12, 12])}, "its header cannot be read"),
        ({"a": ("U8", [2**40] * 100_000, [0, 12])}, "its header cannot be read"),
    ],
)
def test_tensors_lie_one_behind_the_other(tmp_path: Path, entries: dict[str, tuple], complaint: str) -> None:
    names = ("dtype", "shape", "data_offsets")
    header = json.dumps({name: dict(zip(names, entry, strict=True)) for name, entry in entries.items()}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    with pytest.raises(ModelFolderInvalid, match=complaint):
        read_header(tmp_path / "a.safetensors")


def test_a_header_that_is_no_text_is_refused(tmp_path: Path) -> None:
    header = b'{"__metadata__": {"a": "\xff"}}'
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ModelFolderInvalid, match="its header cannot be read"):
        read_header(tmp_path / "a.safetensors")


def test_a_dtype_that_we_do_not_know_is_left_to_the_library(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F4", "shape": [24], "data_offsets": [0, 12]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    assert read_header(tmp_path / "a.safetensors") == header
