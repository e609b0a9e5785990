"""A model folder that costs a server next to nothing to compute, so that what is left is everything around the model.

Two layers of a Llama, 64 wide, with the vocabulary and tokenizer of a real model: sampling, detokenizing and streaming
are as real as ever. The head is the embedding, so greedy it repeats its last token, which has text in every event.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from roundhouse.model_store.safetensors_file import TensorSpec, write

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 64, 128, 2, 2, 1
HEAD_DIM = 32
"""The narrowest that every server has an attention kernel for."""

MAX_MODEL_LEN = 2048
SEED = 0


def make_tiny_model(folder: Path, tokenizer_folder: Path) -> Path:
    """Writes `folder` unless it is whole already (config.json comes last) and returns it."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(tokenizer_folder.iterdir()):
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copyfile(file, folder / file.name)
    source = json.loads((tokenizer_folder / "config.json").read_text())
    shapes = tensor_shapes(source["vocab_size"])
    specs = [TensorSpec(name, "BF16", shape, 2 * int(np.prod(shape))) for name, shape in shapes.items()]
    write(folder / "model.safetensors", specs, _weights(shapes))
    ids = {name: source[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in source}
    (folder / "config.json").write_text(json.dumps(_config(source["vocab_size"]) | ids, indent=2))
    return folder


def tensor_shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    """By the names of a Llama's safetensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab_size, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (HIDDEN,),
            prefix + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            prefix + "post_attention_layernorm.weight": (HIDDEN,),
            prefix + "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            prefix + "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            prefix + "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return shapes


def _weights(shapes: dict[str, tuple[int, ...]]) -> Iterator[bytes]:
    """Norms of one; everything else normal, and in the layers so small that the embedding decides."""
    random = np.random.default_rng(SEED)
    for name, shape in shapes.items():
        if "norm" in name:
            values = np.ones(shape, np.float32)
        else:
            values = random.standard_normal(shape, np.float32) * (0.5 if "embed" in name else 0.02)
        # bfloat16 is the upper half of a float32.
        yield (values.view(np.uint32) >> 16).astype("<u2").tobytes()


def _config(vocab_size: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_MODEL_LEN,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
