"""`python -P -m roundhouse.model_store.convert {gguf,tokenizer} SOURCE FOLDER PARENT_PID`.

The only module here that knows torch, transformers and gguf, and a process of its own: nobody who asks for a conversion
gets to hold torch. It writes into FOLDER, which `cache.build_once` made, and speaks JSON lines on standard output:
{"stage", "done", "total"} while it works and {"error", "message"} (a code of `model_store.errors`) before it exits
with 1. `conversion` is the other end.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roundhouse.lifeline import end_with_parent
from roundhouse.model_store import gguf_llama, gguf_tokenizer, safetensors_file
from roundhouse.model_store.errors import CacheUnusable, ConversionFailed
from roundhouse.model_store.folder import write_json
from roundhouse.model_store.gguf_file import GgufFile, GgufTensor, read_gguf
from roundhouse.protocol.errors import RoundhouseError

if TYPE_CHECKING:
    import numpy as np

Emit = Callable[..., None]

_CONVERTING = "converting the weights to safetensors"
_POSITION_SCALING = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def convert_gguf(source: Path, folder: Path, emit: Emit) -> None:
    """A model folder from a GGUF file.

    Weights become bfloat16. Float32 would be exact but twice the bytes to load at each start, float16 closer but
    without the range that larger models' activations need. Measured on SmolLM2's Q4_1: no weight moves by more than
    0.39 % or 0.0137 (the largest is 9.25), 0.14 % root mean square; of six greedy answers of up to 32 tokens five are
    those of the exact weights.
    """
    gguf = read_gguf(source)
    if gguf.metadata.get("split.count", 0) > 1:
        raise ConversionFailed(f"{source} is one part of a split model; join the parts with llama-gguf-split --merge")
    if gguf_llama.can_convert(gguf):
        _convert_llama(gguf, folder, emit)
    else:
        _convert_by_transformers(gguf, folder, emit)
    if gguf_tokenizer.can_build(gguf):
        gguf_tokenizer.write_tokenizer_files(gguf, folder)
    else:
        _tokenizer_by_transformers(gguf, folder)
        gguf_tokenizer.write_generation_config(gguf, folder)


def _convert_llama(gguf: GgufFile, folder: Path, emit: Emit) -> None:
    factors = next((t for t in gguf.tensors if t.name == "rope_freqs.weight"), None)
    rope_factors = None if factors is None else [float(value) for value in _values(gguf, factors).ravel()]
    write_json(folder / "config.json", gguf_llama.config(gguf, rope_factors))
    tensors = {str(gguf_llama.target_name(t.name)): t for t in gguf.tensors if t is not factors}
    specs = [
        safetensors_file.TensorSpec(name, "BF16", tensor.shape, 2 * _num_values(tensor))
        for name, tensor in tensors.items()
    ]
    total = sum(spec.num_bytes for spec in specs)
    _ask_for_room(folder, total)

    def data() -> Iterator[bytes]:
        done = 0
        for tensor in tensors.values():
            emit(stage=_CONVERTING, done=done, total=total)
            values = _to_bfloat16(tensor.name, _unpermuted(gguf, tensor))
            done += values.nbytes
            yield values.tobytes()
        emit(stage=_CONVERTING, done=done, total=total)

    safetensors_file.write(folder / "model.safetensors", specs, data())


def _values(gguf: GgufFile, tensor: GgufTensor) -> np.ndarray:
    """The tensor's values as float32, in its shape."""
    import gguf as gguf_library
    import numpy as np

    try:
        kind = gguf_library.GGMLQuantizationType(tensor.ggml_type)
        block_values, block_bytes = gguf_library.GGML_QUANT_SIZES[kind]
        num_bytes = _num_values(tensor) // block_values * block_bytes
        raw = np.memmap(str(gguf.path), mode="r", dtype=np.uint8, offset=tensor.offset, shape=(num_bytes,))
        rows = raw.reshape(*tensor.shape[:-1], -1)
        return gguf_library.dequantize(rows, kind).reshape(tensor.shape).astype(np.float32, copy=False)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ConversionFailed(f"tensor {tensor.name} of {gguf.path} cannot be read: {error}") from error


def _unpermuted(gguf: GgufFile, tensor: GgufTensor) -> np.ndarray:
    values = _values(gguf, tensor)
    num_heads = gguf_llama.interleaved_heads(tensor.name, gguf)
    if num_heads is None:
        return values
    return values.reshape(num_heads, -1, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def _to_bfloat16(name: str, values: np.ndarray) -> np.ndarray:
    """The bits as uint16, rounded to nearest even as torch does. NaN would round to infinity, so it is refused."""
    import numpy as np

    if not np.isfinite(values).all():
        raise ConversionFailed(f"tensor {name} holds values that are not finite")
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _num_values(tensor: GgufTensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def _ask_for_room(folder: Path, num_bytes: int) -> None:
    """Better a sentence now than a full disk in a minute."""
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    if free < num_bytes:
        raise CacheUnusable(
            f"the model cache {folder.parent} has {free // 2**20} MiB free and the converted model needs "
            f"{num_bytes // 2**20} MiB; set ROUNDHOUSE_CACHE to a folder with more room"
        )


def _convert_by_transformers(gguf: GgufFile, folder: Path, emit: Emit) -> None:
    """Any architecture that transformers reads from GGUF, without the progress and the small memory of our own road."""
    _refuse_position_scaling(gguf)
    emit(stage=f"{_CONVERTING} with transformers")
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.path.parent),
        gguf_file=gguf.path.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        trust_remote_code=False,
    )
    model.save_pretrained(folder)


def _refuse_position_scaling(gguf: GgufFile) -> None:
    """Transformers 5.24 drops these for most architectures without a word, and the model would garble long texts."""
    scaling = gguf.metadata.get(f"{gguf.architecture}.rope.scaling.type", "none")
    tensors = gguf.tensor_names.intersection(_POSITION_SCALING)
    if gguf.architecture != "gpt-oss" and (tensors or scaling != "none"):
        raise ConversionFailed(
            f"{gguf.path.name} scales its positions in a way that is not converted ({scaling}, {sorted(tensors)}); "
            "use the model's safetensors repository"
        )


def _tokenizer_by_transformers(gguf: GgufFile, folder: Path) -> None:
    from transformers import AutoTokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    pre = gguf.metadata.get("tokenizer.ggml.pre")
    if gguf.metadata.get("tokenizer.ggml.model") == "gpt2" and pre not in GGUF_PRE_TOKENIZER_SPLITS:
        raise ConversionFailed(
            f"{gguf.path.name} splits text in a way that nobody here knows (tokenizer.ggml.pre = {pre}); "
            "use the model's safetensors repository"
        )
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.path.parent), gguf_file=gguf.path.name, trust_remote_code=False)
    tokenizer.save_pretrained(folder)


def convert_tokenizer(source: Path, folder: Path, emit: Emit) -> None:
    """tokenizer.json and the files beside it, from a model folder that has only older ones."""
    emit(stage="converting the tokenizer")
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(str(source), trust_remote_code=False, local_files_only=True).save_pretrained(folder)
    if not (folder / "tokenizer.json").exists():
        raise ConversionFailed(f"the tokenizer in {source} has no form that tokenizer.json can hold")


def main(argv: list[str]) -> int:
    """The edge of the process: every error becomes a line that the parent can read."""
    # Libraries print; only our lines may go where the parent reads.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def emit(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")

    kind, source, folder = argv
    try:
        {"gguf": convert_gguf, "tokenizer": convert_tokenizer}[kind](Path(source), Path(folder), emit)
    except BrokenPipeError:
        return 1  # the parent is gone; the next start removes the folder
    except Exception as error:
        import traceback

        traceback.print_exc()
        emit(error=_code(error), message=_message(error, Path(source)))
        return 1
    return 0


def _code(error: Exception) -> str:
    if isinstance(error, RoundhouseError):
        return error.code
    return CacheUnusable.code if isinstance(error, OSError) and error.errno else ConversionFailed.code


def _message(error: Exception, source: Path) -> str:
    if isinstance(error, RoundhouseError):
        return error.message
    if isinstance(error, ImportError):
        missing = error.name or " ".join(str(error).split())[:200]
        return f"converting {source} needs what is not installed: {missing}; install roundhouse[engine,gguf]"
    if isinstance(error, OSError) and error.errno:
        return f"the model cache cannot be written: {error.strerror}; set ROUNDHOUSE_CACHE to a folder with more room"
    return f"{source} cannot be converted: {' '.join(str(error).split())[:500]}"


if __name__ == "__main__":
    end_with_parent(int(sys.argv[4]))
    sys.exit(main(sys.argv[1:4]))
