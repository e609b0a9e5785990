from pathlib import Path
from typing import Any

import pytest

from roundhouse.model_store.errors import ModelFolderInvalid
from roundhouse.model_store.model_config import (
    DEFAULT_MAX_MODEL_LEN,
    DefaultSampling,
    ModelConfig,
    read_model_config,
)
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


@pytest.mark.parametrize(
    "rope",
    [
        [{"rope_type": "linear"}],
        "linear",
        {"rope_type": "linear", "factor": "2"},
        {"rope_type": "linear", "factor": float("nan")},
        {"rope_type": "linear", "factor": 10**400},
        {"rope_type": "linear", "factor": True},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": "512"},
    ],
)
def test_a_scaling_that_is_none_is_ignored(tmp_path: Path, rope: object) -> None:
    assert read(tmp_path, {"max_position_embeddings": 64, "rope_scaling": rope}).max_model_len == 64


@pytest.mark.parametrize("factor", [1e300, -1.0, 1e-9])
def test_a_context_that_cannot_be_is_refused(tmp_path: Path, factor: float) -> None:
    rope = {"rope_type": "linear", "factor": factor}
    with pytest.raises(ModelFolderInvalid, match="asks for a context of"):
        read(tmp_path, {"max_position_embeddings": 64, "rope_scaling": rope})


@pytest.mark.parametrize("size", [True, -1, 0, 2**31, 10**400, 1.5, None, "10"])
def test_a_size_that_cannot_be_is_none(tmp_path: Path, size: object) -> None:
    assert read(tmp_path, {"max_position_embeddings": size}).max_model_len == DEFAULT_MAX_MODEL_LEN
    with pytest.raises(ModelFolderInvalid, match="has no vocab_size"):
        read(tmp_path, {"vocab_size": size})


def test_numbers_that_no_sampler_has_are_no_recommendation(tmp_path: Path) -> None:
    generation = {"temperature": float("inf"), "top_k": float("nan"), "top_p": 10**400, "eos_token_id": [-1, 0, True]}
    assert read(tmp_path, {}, generation) == ModelConfig("", 10, 2048, frozenset({0}), DefaultSampling())
