from typing import Any

import pytest
import torch

from roundhouse.models.inspection import LayerShape, record_layers, refuse_by_class, refuse_by_config
from roundhouse.protocol.errors import ModelError
from tests.support.tiny_models import CONFIGS, MAX_MODEL_LEN, WINDOW, tiny_model


def shape(window: int | None = None, *, has_softcap: bool = False, has_sinks: bool = False) -> LayerShape:
    return LayerShape(2, 8, 8, 4, window=window, has_softcap=has_softcap, has_sinks=has_sinks)


EXPECTED = {
    "llama": [shape(), shape()],
    "mistral-sliding": [shape(WINDOW), shape(WINDOW)],
    "gemma2-softcap-sliding": [shape(WINDOW, has_softcap=True), shape(None, has_softcap=True)],
    "gpt2": [LayerShape(4, 8, 8, 4, window=None, has_softcap=False, has_sinks=False)] * 2,
    "gpt-oss-sinks": [shape(WINDOW, has_sinks=True), shape(None, has_sinks=True)],
    "deepseek-v3-latent-attention": [LayerShape(4, 12, 6, 4, window=None, has_softcap=False, has_sinks=False)] * 2,
}


@pytest.mark.parametrize("family", EXPECTED)
def test_layers_are_what_they_ask_for(family: str) -> None:
    assert record_layers(tiny_model(family), max_model_len=MAX_MODEL_LEN) == EXPECTED[family]


class _AsksOfNobody(torch.nn.Module):
    """A model whose attention never reaches the interface."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(4, 4)
        self.error = error

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embedding

    def forward(self, **_: Any) -> None:
        if self.error is not None:
            raise self.error


def test_a_model_that_does_not_ask_for_attention_is_refused() -> None:
    with pytest.raises(ModelError, match="attention was computed in layers"):
        record_layers(_AsksOfNobody(), max_model_len=8)
    with pytest.raises(ModelError, match="cannot be run with roundhouse_paged attention"):
        record_layers(_AsksOfNobody(TypeError("unexpected keyword")), max_model_len=8)


def test_a_window_hidden_in_a_mask_is_refused_unless_it_holds_the_whole_context() -> None:
    module = tiny_model("llama")
    module.config.sliding_window = WINDOW
    with pytest.raises(ModelError, match=f"hides its sliding window of {WINDOW} tokens"):
        record_layers(module, max_model_len=WINDOW + 1)
    assert record_layers(module, max_model_len=WINDOW) == [shape(), shape()]


def test_layers_of_an_unknown_type_are_refused_by_name() -> None:
    config = CONFIGS["qwen3"]()
    config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(ModelError, match="layers of type chunked_attention"):
        refuse_by_config(config)


def test_classes_that_keep_a_state_or_attend_by_themselves_are_refused() -> None:
    from transformers import LlamaForCausalLM, MambaForCausalLM, MptForCausalLM

    refuse_by_class(LlamaForCausalLM)
    with pytest.raises(ModelError, match="MambaForCausalLM keeps a recurrent state"):
        refuse_by_class(MambaForCausalLM)
    with pytest.raises(ModelError, match="MptForCausalLM does not use transformers' attention interface"):
        refuse_by_class(MptForCausalLM)


def test_a_class_that_takes_no_positions_is_refused() -> None:
    class NoPositions(torch.nn.Module):
        @classmethod
        def is_backend_compatible(cls) -> bool:
            return True

        def forward(self, input_ids: torch.Tensor, logits_to_keep: int = 0, **_: Any) -> None: ...

    with pytest.raises(ModelError, match="NoPositions takes no position_ids, so"):
        refuse_by_class(NoPositions)
