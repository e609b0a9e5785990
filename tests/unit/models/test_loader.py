import json
from pathlib import Path
from typing import Any

import pytest
import torch

from roundhouse.models.loader import load_causal_lm, read_config
from roundhouse.protocol.errors import ModelError
from tests.support.tiny_models import MAX_MODEL_LEN, VOCAB_SIZE, tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-qwen3")
    tiny_model("qwen3", paged=False).save_pretrained(path)
    return path


def changed(folder: Path, to: Path, **fields: Any) -> Path:
    """A copy of the folder with other fields in its config."""
    config = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(config | fields))
    (to / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return to


def test_a_folder_becomes_a_model(folder: Path) -> None:
    model = load_causal_lm(folder, read_config(folder), dtype=torch.bfloat16, device=CPU)
    assert (model.vocab_size, model.max_model_len, model.dtype) == (VOCAB_SIZE, MAX_MODEL_LEN, torch.bfloat16)
    assert not any(parameter.requires_grad for parameter in model.module.parameters())


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"has no \*\.safetensors; other weight formats are not read"):
        read_config(tmp_path)


@pytest.mark.parametrize("text", ["{}", "not json", '{"model_type": "no such family"}'])
def test_a_config_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be used"):
        read_config(tmp_path)


def test_broken_weights(folder: Path, tmp_path: Path) -> None:
    changed(folder, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_causal_lm(tmp_path, read_config(tmp_path), dtype=torch.float32, device=CPU)


def test_weights_that_are_missing_or_of_another_shape(folder: Path, tmp_path: Path) -> None:
    changed(folder, tmp_path, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    with pytest.raises(ModelError, match=r"lack .*layers\.2\."):
        load_causal_lm(tmp_path, read_config(tmp_path), dtype=torch.float32, device=CPU)
    changed(folder, tmp_path, intermediate_size=64)
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_causal_lm(tmp_path, read_config(tmp_path), dtype=torch.float32, device=CPU)


def test_code_in_the_folder_is_never_run(folder: Path, tmp_path: Path) -> None:
    changed(
        folder, tmp_path, model_type="trap", auto_map={"AutoConfig": "trap.Config", "AutoModelForCausalLM": "trap.M"}
    )
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n")
    with pytest.raises(ModelError):
        read_config(tmp_path)
    changed(folder, tmp_path, auto_map={"AutoModelForCausalLM": "trap.M"})
    load_causal_lm(tmp_path, read_config(tmp_path), dtype=torch.float32, device=CPU)
    assert not (tmp_path / "sprung").exists()


def test_families_that_are_not_served(tmp_path: Path) -> None:
    from transformers import BertConfig, Qwen3NextConfig, T5Config

    (tmp_path / "model.safetensors").write_bytes(b"")
    refusals = {
        "encoder-decoder": T5Config(),
        "layers of type linear_attention": Qwen3NextConfig(),
    }
    for reason, config in refusals.items():
        config.save_pretrained(tmp_path)
        with pytest.raises(ModelError, match=reason):
            load_causal_lm(tmp_path, read_config(tmp_path), dtype=torch.float32, device=CPU)
    from transformers import AutoModelForCausalLM

    small = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    AutoModelForCausalLM.from_config(small).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"attends in both directions|cannot be run"):
        load_causal_lm(tmp_path, read_config(tmp_path), dtype=torch.float32, device=CPU)
