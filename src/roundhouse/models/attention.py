"""The seam between a transformers model and our attention: `roundhouse_paged` in transformers' attention interface.

A step's attention object rides through the model's forward as a keyword argument, as transformers lets every model that
supports the interface pass it on; nothing is global. No mask function is registered under our name, so transformers
builds no mask: who may see whom is decided by the attention object alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

IMPLEMENTATION = "roundhouse_paged"
ARGUMENT = "roundhouse_attention"
"""The keyword argument that carries the step's `StepAttention` to every layer."""


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """What one layer asks of its attention beside queries, keys and values.

    scale: factor on the scores. window: a query sees this many keys, itself included; None sees all before it.
    softcap: scores become softcap · tanh(score / softcap). sinks: [num_heads], one more score per head that takes part
    in the softmax and has no value.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


class StepAttention(Protocol):
    """Attention of one step over all its tokens."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        """query [T, num_heads, key_size], key [T, num_kv_heads, key_size], value [T, num_kv_heads, value_size], T the
        step's tokens in order → [T, num_heads, value_size]. The keys and values of these tokens are kept."""
        ...


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers' models call: tensors [1, heads, T, size] in, [1, T, heads, size] out."""
    attention: StepAttention = kwargs[ARGUMENT]
    layer = module.layer_idx
    assert isinstance(layer, int)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    options = LayerOptions(scale=scale, window=sliding_window, softcap=softcap, sinks=s_aux)
    out = attention.attend(layer, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), options)
    return out.unsqueeze(0), None
