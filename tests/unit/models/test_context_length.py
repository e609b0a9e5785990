import pytest
from transformers import LlamaConfig, Phi3Config

from roundhouse.models.context_length import check_max_model_len
from roundhouse.protocol.errors import ModelError


def test_a_model_serves_what_it_was_trained_for() -> None:
    config = LlamaConfig(max_position_embeddings=512)
    assert (check_max_model_len(config, None), check_max_model_len(config, 100)) == (512, 100)
    with pytest.raises(ModelError, match=r"513 is over what the model serves: 512 \(max_position_embeddings\)"):
        check_max_model_len(config, 513)


def test_a_rotary_embedding_that_depends_on_the_batch_bounds_it() -> None:
    factors = [1.0] * 48
    config = Phi3Config(
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": 4096,
        },
    )
    assert check_max_model_len(config, None) == 4096
    with pytest.raises(ModelError, match="longrope"):
        check_max_model_len(config, 8192)


def test_a_scaled_rotary_embedding_that_does_not_is_no_bound() -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    assert check_max_model_len(LlamaConfig(max_position_embeddings=8192, rope_parameters=rope), None) == 8192
