"""Which models can be run so that a request's bits depend on nobody else, and what that asks of the threads."""

from __future__ import annotations

import re

import torch

from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.tiles import most_even_threads
from roundhouse.protocol.errors import ConfigError

SERVED_DTYPES = (torch.float32, torch.bfloat16)

_EXPERTS = re.compile(r"Expert|Router|MoE|SparseMoe")


def refuse_not_deterministic(model: CausalLM) -> None:
    """Raises `ConfigError` for a model whose rows would depend on each other, or whose attention has no fixed form."""
    name = type(model.module).__name__
    if model.device.type != "cpu":
        raise ConfigError(f"deterministic execution is for the CPU, and the device is {model.device.type}")
    if model.dtype not in SERVED_DTYPES:
        kind = str(model.dtype).removeprefix("torch.")
        raise ConfigError(f"deterministic execution computes in float32 or bfloat16, not in {kind}")
    if any(_EXPERTS.search(type(part).__name__) for part in model.module.modules()):
        raise ConfigError(
            f"{name} has experts, which group rows by what is in them; it cannot be run deterministically"
        )
    for index, layer in enumerate(model.layers):
        if layer.has_softcap or layer.has_sinks:
            feature = "a softcap" if layer.has_softcap else "sinks"
            raise ConfigError(f"{name}: layer {index} has attention with {feature}, which has no deterministic form")
        if layer.key_size != layer.value_size or layer.num_heads % layer.num_kv_heads:
            raise ConfigError(
                f"{name}: layer {index} has attention with {layer.num_heads} heads over {layer.num_kv_heads}, keys of "
                f"{layer.key_size} and values of {layer.value_size}, which has no deterministic form"
            )


def deterministic_threads(model: CausalLM, limit: int) -> int:
    """Threads to compute with, at most `limit`. Raises `ConfigError` when the model's widths allow none."""
    widths = row_widths(model)
    count = most_even_threads(limit, widths)
    if count is None:
        raise ConfigError(
            f"{type(model.module).__name__} has layers of widths {', '.join(map(str, sorted(widths)))}: "
            "they fill no whole vectors, so it cannot be run deterministically"
        )
    return count


def row_widths(model: CausalLM) -> set[int]:
    """Elements of a row in and between the layers; of the logits only when something is computed of each."""
    module = model.module
    ends = {id(module.get_input_embeddings().weight), id(module.get_output_embeddings().weight)}
    matrices = [weight for weight in module.parameters() if weight.ndim == 2 and id(weight) not in ends]
    widths = {size for weight in matrices for size in weight.shape}
    if getattr(module.config.get_text_config(decoder=True), "final_logit_softcapping", None):
        widths.add(model.vocab_size)
    return widths
