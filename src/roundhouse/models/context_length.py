"""How long a model's context may be."""

from __future__ import annotations

from typing import Any

from roundhouse.protocol.errors import ModelError

DEFAULT_LENGTH = 2048
"""When the config names no length at all."""

_BATCH_WIDE_ROPE = frozenset(["dynamic", "longrope"])
"""Rotary embeddings that transformers computes from the longest position *in the batch*: past the original length a
request's tokens would depend on who shares its step."""


def check_max_model_len(config: Any, wanted: int | None) -> int:
    """`wanted`, or the longest context that `config` serves right. Raises `ModelError` when `wanted` is over that."""
    longest, why = _longest(config.get_text_config(decoder=True))
    if wanted is None:
        return longest
    if wanted > longest:
        raise ModelError(f"a maximum model length of {wanted} is over what the model serves: {longest} ({why})")
    return wanted


def _longest(config: Any) -> tuple[int, str]:
    trained = getattr(config, "max_position_embeddings", None) or DEFAULT_LENGTH
    parameters = getattr(config, "rope_parameters", None) or {}
    per_layer_type = [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
    for rope in per_layer_type:
        if rope.get("rope_type") in _BATCH_WIDE_ROPE:
            original = rope.get("original_max_position_embeddings") or trained
            return min(trained, original), f"the original length of its {rope['rope_type']} rotary embedding"
    return trained, "max_position_embeddings"
