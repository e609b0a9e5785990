from pathlib import Path

import pytest

from roundhouse.model_store.errors import ModelFolderInvalid
from roundhouse.model_store.folder import check_folder, missing_parts, read_json, read_text, weight_files
from tests.unit.model_store import tiny


def complaint(path: Path, *, weights: bool = True) -> str:
    with pytest.raises(ModelFolderInvalid) as caught:
        check_folder(path, weights=weights)
    return caught.value.message


def test_a_whole_folder_passes(tmp_path: Path) -> None:
    check_folder(tiny.write_folder(tmp_path))


def test_everything_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    assert complaint(tmp_path) == f"model folder {tmp_path} has no config.json, no *.safetensors, no tokenizer.json"


def test_a_frontend_asks_for_no_weights(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    check_folder(tmp_path, weights=False)
    assert complaint(tmp_path) == f"model folder {tmp_path} has no *.safetensors"


def test_pickles_are_refused_and_the_reason_given(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert complaint(tmp_path) == (
        f"model folder {tmp_path} has no *.safetensors; only safetensors are read, "
        "never pickles such as pytorch_model.bin, because unpickling runs code"
    )


def test_other_formats_get_a_hint(tmp_path: Path) -> None:
    (tmp_path / "model.Q4.gguf").touch()
    assert complaint(tmp_path).endswith("; to serve a GGUF file, name the file: model.Q4.gguf")
    (tmp_path / "model.Q4.gguf").unlink()
    (tmp_path / "adapter_config.json").touch()
    (tmp_path / "adapter_model.safetensors").touch()
    assert complaint(tmp_path) == (
        f"model folder {tmp_path} has no config.json, no *.safetensors, no tokenizer.json; "
        "it holds a LoRA adapter, not a model"
    )


def test_damaged_weights_are_found_before_an_engine_starts(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert complaint(tmp_path) == (
        f"{tmp_path / 'model.safetensors'} is a git-lfs pointer, not the weights: run `git lfs pull`"
    )


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert complaint(tmp_path / "file") == f"model folder {tmp_path / 'file'} cannot be read: Not a directory"


@pytest.mark.parametrize("group", [("tokenizer.model",), ("vocab.json", "merges.txt")])
def test_older_tokenizers_count(group: tuple[str, ...]) -> None:
    assert missing_parts({"config.json", *group}, weights=False) == []
    assert missing_parts({"config.json", *group[1:]}, weights=False) == ["tokenizer.json"]


def test_without_an_index_every_safetensors_file_is_weights(tmp_path: Path) -> None:
    for name in ("b.safetensors", "a.safetensors", "consolidated.safetensors", "adapter_model.safetensors"):
        (tmp_path / name).touch()
    assert weight_files(tmp_path) == [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]


def test_an_index_says_which_files_are_weights(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors", "c.safetensors"):
        (tmp_path / name).touch()
    index = tmp_path / "model.safetensors.index.json"
    tiny.write_json(index, {"weight_map": {"x": "c.safetensors", "y": "a.safetensors", "z": "a.safetensors"}})
    assert weight_files(tmp_path) == [tmp_path / "a.safetensors", tmp_path / "c.safetensors"]
    (tmp_path / "c.safetensors").unlink()
    with pytest.raises(ModelFolderInvalid, match=r"has no c\.safetensors, which model\.safetensors\.index\.json lists"):
        weight_files(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], {"x": "../a.safetensors"}, {"x": "/a.safetensors"}, {"x": 1}])
def test_an_index_cannot_point_out_of_the_folder(tmp_path: Path, weight_map: object) -> None:
    tiny.write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(ModelFolderInvalid, match="has no weight_map of file names"):
        weight_files(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "[" * 100_000, "\udcff"])
def test_json_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ModelFolderInvalid):
        read_json(tmp_path / "config.json")


def test_an_index_may_name_what_no_file_can_be_called(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path)
    for name in ("m" * 300 + ".safetensors", "\0.safetensors", "\ud800.safetensors"):
        tiny.write_json(tmp_path / "model.safetensors.index.json", {"weight_map": {"weight": name}})
        with pytest.raises(ModelFolderInvalid, match=r"which model\.safetensors\.index\.json lists"):
            weight_files(tmp_path)


def test_a_text_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"ab\xff")
    with pytest.raises(ModelFolderInvalid, match="is not a text in UTF-8: invalid start byte at byte 2"):
        read_text(tmp_path / "a")
    with pytest.raises(ModelFolderInvalid, match="cannot be read: No such file or directory"):
        read_text(tmp_path / "b")
