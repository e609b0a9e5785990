"""One forward over two tokens with a recorder for attention: what each layer really asks for, whatever its config says.

Layers, heads and sizes of the KV cache come from here, so no family needs a rule of its own. A model that our attention
would serve wrongly is refused here, before it serves anybody.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from roundhouse.models.attention import ARGUMENT, IMPLEMENTATION, LayerOptions
from roundhouse.protocol.errors import ModelError

KNOWN_LAYER_TYPES = frozenset(["full_attention", "sliding_attention"])


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps per token: `num_kv_heads` keys of `key_size` and values of `value_size`."""

    num_kv_heads: int
    key_size: int
    value_size: int
    num_heads: int
    window: int | None
    has_softcap: bool
    has_sinks: bool


class Recorder:
    """A `StepAttention` that attends to nothing and writes down who called."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: LayerOptions
    ) -> torch.Tensor:
        if layer in self.layers:
            raise ModelError(f"layer {layer} computes attention twice in one forward pass, which is not supported")
        self.layers[layer] = LayerShape(
            num_kv_heads=key.shape[1],
            key_size=key.shape[2],
            value_size=value.shape[2],
            num_heads=query.shape[1],
            window=options.window,
            has_softcap=options.softcap is not None,
            has_sinks=options.sinks is not None,
        )
        return query.new_zeros(query.shape[0], query.shape[1], value.shape[2])


def refuse_by_config(config: Any) -> None:
    """Raises `ModelError` for what the config alone shows: encoder-decoder models and layers that keep a state."""
    if config.is_encoder_decoder:
        raise ModelError(f"{config.model_type} is an encoder-decoder model; only decoders are served")
    text = config.get_text_config(decoder=True)
    strange = sorted(set(getattr(text, "layer_types", None) or ()) - KNOWN_LAYER_TYPES)
    if strange:
        raise ModelError(
            f"{config.model_type} has layers of type {', '.join(strange)}; served are full and sliding-window attention"
        )


def refuse_by_class(model_class: Any) -> None:
    """Raises `ModelError` for a class that keeps a state of its own or computes its attention by itself."""
    name = model_class.__name__
    if getattr(model_class, "_is_stateful", False):
        raise ModelError(f"{name} keeps a recurrent state (a state-space model), which is not supported")
    if not model_class.is_backend_compatible():
        raise ModelError(f"{name} does not use transformers' attention interface, so it cannot have a paged KV cache")
    missing = sorted({"position_ids", "logits_to_keep"} - set(inspect.signature(model_class.forward).parameters))
    if missing:
        raise ModelError(f"{name} takes no {' and no '.join(missing)}, so it cannot be given a flattened batch")


def record_layers(module: Any, *, max_model_len: int) -> list[LayerShape]:
    """The layers of `module` in order. Raises `ModelError` when it would not be served right up to `max_model_len`."""
    recorder = Recorder()
    device = module.get_input_embeddings().weight.device
    ids = torch.zeros(1, 2, dtype=torch.long, device=device)
    positions = torch.arange(2, device=device).unsqueeze(0)
    name = type(module).__name__
    try:
        with torch.inference_mode():
            module(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=1, **{ARGUMENT: recorder})
    except (TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{name} cannot be run with {IMPLEMENTATION} attention: {error}") from error
    if not recorder.layers or sorted(recorder.layers) != list(range(len(recorder.layers))):
        raise ModelError(f"{name}: attention was computed in layers {sorted(recorder.layers)}, not in 0, 1, 2, …")
    layers = [recorder.layers[index] for index in sorted(recorder.layers)]
    _refuse_by_layers(module, layers, max_model_len)
    return layers


def _refuse_by_layers(module: Any, layers: list[LayerShape], max_model_len: int) -> None:
    name = type(module).__name__
    attention_modules = [part for part in module.modules() if hasattr(part, "layer_idx") and hasattr(part, "is_causal")]
    if not all(part.is_causal for part in attention_modules):
        raise ModelError(f"{name} attends in both directions; only causal models are served")
    config = module.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    if not window or window >= max_model_len or getattr(config, "use_sliding_window", True) is False:
        return
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * len(layers)
    for index, (layer, kind) in enumerate(zip(layers, types, strict=False)):
        if kind == "sliding_attention" and layer.window is None:
            raise ModelError(
                f"{name}: layer {index} hides its sliding window of {window} tokens in a mask; "
                f"it is served right only up to a maximum model length of {window}"
            )
