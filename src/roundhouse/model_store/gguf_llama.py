"""GGUF's `llama` architecture → the names, the config and the row order of transformers' LlamaForCausalLM.

Written out here because it is the default model's: so it needs neither torch nor transformers (seconds of imports), and
a file that needs anything more than this table goes to transformers instead.
"""

from __future__ import annotations

import math
import re
from typing import Any

from roundhouse.model_store.errors import ConversionFailed
from roundhouse.model_store.gguf_file import GgufFile

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_ROPE_FREQS = "rope_freqs.weight"

_LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Of every Llama 3.1 to 3.3; a file has only the resulting factors, which `llama3_rope` recomputes and compares."""


def target_name(name: str) -> str | None:
    """The parameter's name in transformers, None for a tensor that this table does not know."""
    if name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in _LAYER_NAMES:
        return None
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"


def can_convert(gguf: GgufFile) -> bool:
    """Whether the table covers all of the file: no experts, no biases, no scaling of positions but Llama 3's."""
    scaling = gguf.metadata.get("llama.rope.scaling.type", "none")
    known = all(target_name(name) for name in gguf.tensor_names - {_ROPE_FREQS})
    return gguf.architecture == "llama" and known and scaling == "none"


def config(gguf: GgufFile, rope_factors: list[float] | None) -> dict[str, Any]:
    """config.json; `rope_factors` are the values of rope_freqs.weight, if the file has it."""
    try:
        _check_complete(gguf)
        return _config(gguf, rope_factors)
    except KeyError as error:
        raise ConversionFailed(f"the GGUF file has no {error.args[0]}") from error
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConversionFailed(f"the GGUF file describes its model in a way that is not known: {error}") from error


def _check_complete(gguf: GgufFile) -> None:
    """A layer that the file lacks would be loaded as random numbers."""
    num_layers = gguf.metadata["llama.block_count"]
    # The number is the file's word and may be anything.
    layers = range(min(num_layers, len(gguf.tensors) + 1))
    expected = {f"blk.{layer}.{name}.weight" for layer in layers for name in _LAYER_NAMES}
    missing = sorted((expected | {"token_embd.weight", "output_norm.weight"}) - gguf.tensor_names)
    if missing:
        raise ConversionFailed(f"the GGUF file lacks {len(missing)} of its model's tensors, the first is {missing[0]}")


def _config(gguf: GgufFile, rope_factors: list[float] | None) -> dict[str, Any]:
    key = {name.removeprefix("llama."): value for name, value in gguf.metadata.items() if name.startswith("llama.")}
    ids = {f"{short}_token_id": gguf.metadata.get(f"tokenizer.ggml.{short}_token_id") for short in ("bos", "eos")}
    num_heads = key["attention.head_count"]
    head_dim = key.get("rope.dimension_count", key["embedding_length"] // num_heads)
    theta = _short(key.get("rope.freq_base", 10000.0))
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if rope_factors is not None:
        rope = llama3_rope(rope_factors, theta, head_dim)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": {tensor.name: tensor.shape for tensor in gguf.tensors}["token_embd.weight"][0],
        "hidden_size": key["embedding_length"],
        "intermediate_size": key["feed_forward_length"],
        "num_hidden_layers": key["block_count"],
        "num_attention_heads": num_heads,
        "num_key_value_heads": key.get("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": key["context_length"],
        "rms_norm_eps": _short(key["attention.layer_norm_rms_epsilon"]),
        "rope_parameters": rope,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in gguf.tensor_names,
        **ids,
        "pad_token_id": gguf.metadata.get("tokenizer.ggml.padding_token_id"),
    }


def llama3_rope(factors: list[float], theta: float, head_dim: int) -> dict[str, Any]:
    """The parameters that yield `factors`. Raises `ConversionFailed` if Llama 3's do not: a guess would garble long
    texts.
    """
    scale = max(factors)
    low, high = _LLAMA3_ROPE["low_freq_factor"], _LLAMA3_ROPE["high_freq_factor"]
    length = _LLAMA3_ROPE["original_max_position_embeddings"]
    for index, factor in enumerate(factors):
        wavelength = 2 * math.pi * theta ** (2 * index / head_dim)
        smooth = min(1.0, max(0.0, (length / wavelength - low) / (high - low)))
        if not math.isclose(factor, 1 / ((1 - smooth) / scale + smooth), rel_tol=1e-4):
            raise ConversionFailed(
                "the GGUF file scales rotary frequencies in a way that only its author's config knows"
            )
    return {"rope_type": "llama3", "rope_theta": theta, "factor": scale, **_LLAMA3_ROPE}


def interleaved_heads(name: str, gguf: GgufFile) -> int | None:
    """Heads of a tensor whose rows llama.cpp reordered (pairs side by side instead of halves), None for all others."""
    match = _LAYER.fullmatch(name)
    kind = match[2] if match else ""
    num_heads = gguf.metadata["llama.attention.head_count"]
    if kind == "attn_q":
        return num_heads
    return gguf.metadata.get("llama.attention.head_count_kv", num_heads) if kind == "attn_k" else None


def _short(value: float) -> float:
    """1e-05 for the float32 9.99999975e-06 that the file has: the value its author wrote."""
    return float(f"{value:.7g}")
