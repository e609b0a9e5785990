"""What config.json and generation_config.json say that the frontend needs: lengths, end tokens, default sampling.

Read as plain JSON: the frontend has no transformers, and a config class of the model's own would be somebody else's
code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import float_info
from typing import Any, TypeGuard

from roundhouse.model_store.errors import ModelFolderInvalid
from roundhouse.model_store.folder import read_json, read_json_if_any

DEFAULT_MAX_MODEL_LEN = 2048
"""For a config that names no length at all; vLLM's choice as well."""

MAX_SIZE = 2**31 - 1
"""Of vocabularies and contexts: token ids and positions are 32 bits everywhere."""

_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length", "n_ctx")
_NO_FACTOR = ("default", "llama3", "longrope", "su", "mrope", "proportional")
"""Kinds of position scaling whose max_position_embeddings already counts the scaling."""


@dataclass(frozen=True, slots=True)
class DefaultSampling:
    """The model's own recommendation; None where it makes none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """`vocab_size` is the width of the logits, which is often padded beyond the tokenizer's."""

    model_type: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    default_sampling: DefaultSampling


def read_model_config(folder: Path) -> ModelConfig:
    """Raises `ModelFolderInvalid` when config.json is not a language model's."""
    whole = read_json(folder / "config.json")
    generation = read_json_if_any(folder / "generation_config.json")
    nested = whole.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else whole
    vocab_size = text.get("vocab_size", whole.get("vocab_size"))
    if not _is_size(vocab_size):
        raise ModelFolderInvalid(f"{folder / 'config.json'} has no vocab_size")
    return ModelConfig(
        model_type=str(whole.get("model_type", "")),
        vocab_size=vocab_size,
        max_model_len=_checked_length(folder, _max_model_len(text)),
        eos_token_ids=_ids(generation.get("eos_token_id", text.get("eos_token_id", whole.get("eos_token_id")))),
        default_sampling=_default_sampling(generation),
    )


def _max_model_len(config: Mapping[str, Any]) -> float:
    """The length the positions reach, scaled as the model was trained for."""
    length = next((config[key] for key in _LENGTH_KEYS if _is_size(config.get(key))), DEFAULT_MAX_MODEL_LEN)
    given = config.get("rope_scaling") or config.get("rope_parameters")
    rope: dict[str, Any] = given if isinstance(given, dict) else {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    factor = _number(rope.get("factor")) or 1.0
    # Gemma 3's lengths count the scaling although its kind is linear.
    if kind in _NO_FACTOR or "gemma3" in str(config.get("model_type")):
        return length
    if kind == "yarn":
        original = rope.get("original_max_position_embeddings")
        return max(length, original * factor) if _is_size(original) else length
    return length * factor


def _checked_length(folder: Path, length: float) -> int:
    if not 1 <= length <= MAX_SIZE:
        raise ModelFolderInvalid(f"{folder / 'config.json'} asks for a context of {length:g} tokens")
    return int(length)


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIZE


def _number(value: object) -> float | None:
    """JSON as Python reads it knows numbers that are not finite, and whole ones that no float holds."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not -float_info.max <= value <= float_info.max:
        return None
    return float(value)


def _ids(value: object) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(item for item in values if _is_size(item) or (item == 0 and type(item) is int))


def _default_sampling(generation: Mapping[str, Any]) -> DefaultSampling:
    def number(name: str) -> float | None:
        return _number(generation.get(name))

    top_k = number("top_k")
    return DefaultSampling(
        temperature=number("temperature"),
        top_p=number("top_p"),
        top_k=None if top_k is None else int(top_k),
        min_p=number("min_p"),
        repetition_penalty=number("repetition_penalty"),
    )
