from pathlib import Path

import pytest

from roundhouse.model_store.errors import ModelFolderInvalid
from roundhouse.model_store.fingerprint import fingerprint
from tests.unit.model_store import tiny

MIB = 2**20


def test_the_place_and_the_other_files_do_not_count(tmp_path: Path) -> None:
    one, two = tiny.write_folder(tmp_path / "one"), tiny.write_folder(tmp_path / "two")
    (two / "README.md").write_text("x")
    (two / "chat_template.jinja").write_text("x")
    assert fingerprint(one) == fingerprint(two)
    assert len(fingerprint(one)) == 64


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_config_and_tokenizer_count(tmp_path: Path, name: str) -> None:
    folder = tiny.write_folder(tmp_path)
    before = fingerprint(folder)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    assert fingerprint(folder) != before


@pytest.mark.parametrize(("changed", "counts"), [(0, True), (5 * MIB - 1, True), (2 * MIB, False)])
def test_both_ends_of_the_weights_count(tmp_path: Path, changed: int, counts: bool) -> None:
    data = bytearray(5 * MIB)
    before = fingerprint(tiny.write_folder(tmp_path, data=bytes(data)))
    data[changed] = 1
    assert (fingerprint(tiny.write_folder(tmp_path, data=bytes(data))) != before) is counts


def test_size_and_name_of_the_weights_count(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path, data=bytes(10))
    before = fingerprint(folder)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    renamed = fingerprint(folder)
    (folder / "other.safetensors").unlink()
    tiny.write_folder(tmp_path, data=bytes(11))
    assert len({before, renamed, fingerprint(folder)}) == 3


def test_a_folder_without_a_part_is_refused(tmp_path: Path) -> None:
    (tiny.write_folder(tmp_path) / "tokenizer.json").unlink()
    with pytest.raises(ModelFolderInvalid, match="cannot be read"):
        fingerprint(tmp_path)
