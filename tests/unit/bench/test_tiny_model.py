from __future__ import annotations

import json
from pathlib import Path

from roundhouse.model_store.folder import check_folder
from tests.bench.tiny_model import make_tiny_model, tensor_shapes
from tests.unit.model_store.tiny import write_folder


def test_a_tiny_model_is_a_model_folder_with_the_tokenizer_of_another(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", config={"eos_token_id": 2})
    folder = make_tiny_model(tmp_path / "tiny", source)
    check_folder(folder)
    assert (folder / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    config = json.loads((folder / "config.json").read_text())
    assert (config["vocab_size"], config["num_hidden_layers"], config["eos_token_id"]) == (264, 2, 2)


def test_the_same_weights_every_time(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source")
    first, second = (make_tiny_model(tmp_path / name, source) for name in ("first", "second"))
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_a_whole_folder_is_left_alone(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source")
    folder = make_tiny_model(tmp_path / "tiny", source)
    (folder / "model.safetensors").write_bytes(b"mine")
    make_tiny_model(folder, source)
    assert (folder / "model.safetensors").read_bytes() == b"mine"


def test_shapes_follow_the_vocabulary() -> None:
    shapes = tensor_shapes(1000)
    assert shapes["model.embed_tokens.weight"] == (1000, 64)
    assert len(shapes) == 2 + 2 * 9
