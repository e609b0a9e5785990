from pathlib import Path
from typing import Any

import pytest

from roundhouse.model_store.errors import ModelFolderInvalid
from roundhouse.model_store.model_config import DefaultSampling, ModelConfig, read_model_config
from tests.unit.model_store import tiny


def read(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    tiny.write_json(folder / "config.json", {"vocab_size": 10, **config})
    if generation is not None:
        tiny.write_json(folder / "generation_config.json", generation)
    return read_model_config(folder)


def test_all_of_it(tmp_path: Path) -> None:
    config = {"model_type": "llama", "vocab_size": 10, "max_position_embeddings": 64, "eos_token_id": 1}
    generation = {"eos_token_id": [2, 3], "temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True}
    assert read(tmp_path, config, generation) == ModelConfig(
        "llama", 10, 64, frozenset({2, 3}), DefaultSampling(temperature=0.6, top_p=0.9, top_k=20)
    )


def test_a_model_that_recommends_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, {}) == ModelConfig("", 10, 2048, frozenset(), DefaultSampling())
    assert read(tmp_path, {"eos_token_id": 1}) == ModelConfig("", 10, 2048, frozenset({1}), DefaultSampling())


def test_the_language_part_of_a_larger_model_counts(tmp_path: Path) -> None:
    config = {"model_type": "both", "text_config": {"vocab_size": 7, "max_position_embeddings": 9, "eos_token_id": 3}}
    assert read(tmp_path, config) == ModelConfig("both", 7, 9, frozenset({3}), DefaultSampling())


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}, 16384),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 2}}, 8192),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "longrope"}}, 131072),
        ({"max_position_embeddings": 8192, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}, 8192),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        (
            {
                "model_type": "gemma3_text",
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}},
            },
            131072,
        ),
    ],
)
def test_length_by_kind_of_position_scaling(tmp_path: Path, config: dict[str, Any], length: int) -> None:
    assert read(tmp_path, config).max_model_len == length


@pytest.mark.parametrize("vocab_size", [None, "10", 0, -1])
def test_a_config_of_something_else_is_refused(tmp_path: Path, vocab_size: object) -> None:
    with pytest.raises(ModelFolderInvalid, match=r"config\.json has no vocab_size"):
        read(tmp_path, {"vocab_size": vocab_size})
