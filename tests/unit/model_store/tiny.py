"""Made-up models of a few bytes: folders, tokenizers and GGUF files that are whole in every part."""

from __future__ import annotations

import json
import struct
from array import array
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from roundhouse.model_store.safetensors_file import TensorSpec, write

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "Ġ")]
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _INT32 = 4, 6, 7, 8, 9, 5
_F32, _ALIGNMENT = 0, 32


def vocabulary() -> list[str]:
    """Three special tokens, the 256 bytes in GPT-2's spelling, and what `MERGES` makes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return [*SPECIAL, *alphabet, *(left + right for left, right in MERGES)]


def tokenizer() -> Tokenizer:
    vocab = {token: index for index, token in enumerate(vocabulary())}
    result = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    result.decoder = decoders.ByteLevel()
    result.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return result


def write_folder(folder: Path, *, config: dict[str, Any] | None = None, data: bytes = b"\0\1\2\3") -> Path:
    """A model folder with everything in it; `data` is the one weight."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {"model_type": "llama", "vocab_size": 264, **(config or {})})
    write_json(folder / "tokenizer_config.json", {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2]})
    tokenizer().save(str(folder / "tokenizer.json"))
    write(folder / "model.safetensors", [TensorSpec("weight", "U8", (len(data),), len(data))], [data])
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def metadata(**changes: Any) -> dict[str, Any]:
    """Of a llama of one layer with two query heads and one key head; None takes a key out."""
    keys: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 128,
        "llama.embedding_length": 8,
        "llama.block_count": 1,
        "llama.feed_forward_length": 4,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary(),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(vocabulary()) - len(SPECIAL)),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    keys |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in keys.items() if value is not None}


def llama_shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of `metadata()`'s model."""
    return {
        "token_embd.weight": (len(vocabulary()), 8),
        "output_norm.weight": (8,),
        "blk.0.attn_norm.weight": (8,),
        "blk.0.ffn_norm.weight": (8,),
        "blk.0.attn_q.weight": (8, 8),
        "blk.0.attn_k.weight": (4, 8),
        "blk.0.attn_v.weight": (4, 8),
        "blk.0.attn_output.weight": (8, 8),
        "blk.0.ffn_gate.weight": (4, 8),
        "blk.0.ffn_up.weight": (4, 8),
        "blk.0.ffn_down.weight": (8, 4),
    }


def write_gguf(path: Path, keys: dict[str, Any], shapes: dict[str, tuple[int, ...]] | None = None) -> Path:
    """A GGUF file whose float32 tensors count up from zero, each on its own."""
    shapes = llama_shapes() if shapes is None else shapes
    out = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(keys))
    for key, value in keys.items():
        out += _string(key) + _value(value)
    blobs: list[bytes] = []
    offset = 0
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        blob = array("f", range(count)).tobytes()
        out += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        out += struct.pack("<IQ", _F32, offset)
        blobs.append(_padded(blob))
        offset += len(blobs[-1])
    path.write_bytes(_padded(out) + b"".join(blobs))
    return path


def _padded(blob: bytes) -> bytes:
    return blob + b"\0" * (-len(blob) % _ALIGNMENT)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if value and isinstance(value[0], int):
        return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _INT32, len(value), *value)
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
