import pytest
import torch

from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.determinism import deterministic_threads, refuse_not_deterministic, row_widths
from roundhouse.models.loader import wrap_module
from roundhouse.protocol.errors import ConfigError
from tests.support.tiny_models import MAX_MODEL_LEN, VOCAB_SIZE, tiny_model


def model(family: str, dtype: torch.dtype = torch.float32) -> CausalLM:
    return wrap_module(tiny_model(family).to(dtype), max_model_len=MAX_MODEL_LEN)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral-sliding", "gemma3-sliding", "gpt2", "phi3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_decoders_are_taken(family: str, dtype: torch.dtype) -> None:
    refuse_not_deterministic(model(family, dtype))


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("mixtral-experts", "MixtralForCausalLM has experts, which group rows by what is in them"),
        ("deepseek-v3-latent-attention", "DeepseekV3ForCausalLM has experts"),
        ("gpt-oss-sinks", "GptOssForCausalLM has experts"),
        ("gemma2-softcap-sliding", "Gemma2ForCausalLM: layer 0 has attention with a softcap"),
    ],
)
def test_what_has_no_deterministic_form_is_refused_by_name(family: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        refuse_not_deterministic(model(family))


def test_a_dtype_that_is_not_served_is_refused() -> None:
    with pytest.raises(ConfigError, match="computes in float32 or bfloat16, not in float16"):
        refuse_not_deterministic(model("llama", torch.float16))


def test_widths_are_the_layers_and_the_logits_only_if_something_is_computed_of_them() -> None:
    assert row_widths(model("llama")) == {32, 48, 16}
    assert row_widths(model("gemma2-softcap-sliding")) == {32, 48, 16, VOCAB_SIZE}


def test_threads() -> None:
    assert deterministic_threads(model("llama"), 3) == 3
    with pytest.raises(ConfigError, match=r"widths 16, 32, 48, 101: they fill no whole vectors"):
        deterministic_threads(model("gemma2-softcap-sliding"), 3)
