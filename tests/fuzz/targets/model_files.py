"""A model folder of a stranger → what we read of it, or a `ModelError`. Nothing of it is run."""

from __future__ import annotations

import atexit
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from random import Random

from roundhouse.model_store import gguf_llama, gguf_tokenizer, safetensors_file
from roundhouse.model_store.chat_template import load_chat_template
from roundhouse.model_store.fingerprint import fingerprint
from roundhouse.model_store.folder import check_folder
from roundhouse.model_store.gguf_file import read_gguf
from roundhouse.model_store.tokenizer import load_tokenizer
from roundhouse.protocol.errors import ModelError
from tests.fuzz import gguf_bytes
from tests.fuzz.mutation import mutate_bytes, mutate_json, mutate_parcel, mutate_tree
from tests.fuzz.parcel import pack, unpack
from tests.fuzz.target import Target, expect
from tests.unit.model_store import tiny

_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "chat_template.jinja",
)
"""What the parts of a folder's parcel are, in this order; an empty part is a file that is not there."""


@cache
def _scratch() -> Path:
    """One folder of this process, which goes with it, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="roundhouse-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run_safetensors(data: bytes) -> bool:
    path = _scratch() / "model.safetensors"
    path.write_bytes(data)
    try:
        header = safetensors_file.read_header(path)
    except ModelError:
        return False
    entries = json.loads(header)
    ranges = sorted(entry["data_offsets"] for name, entry in entries.items() if name != "__metadata__")
    num_data_bytes = len(data) - 8 - len(header)
    expect([begin for begin, _ in ranges] == [0, *(end for _, end in ranges)][: len(ranges)], "tensors overlap")
    expect((ranges[-1][1] if ranges else 0) == num_data_bytes, "tensors end elsewhere than the file")
    return True


def run_gguf(data: bytes) -> bool:
    path, folder = _scratch() / "m.gguf", _scratch() / "from_gguf"
    path.write_bytes(data)
    folder.mkdir(exist_ok=True)
    try:
        gguf = read_gguf(path)
        expect(all(0 <= tensor.offset < len(data) for tensor in gguf.tensors), "a tensor lies beyond the file")
        if gguf_tokenizer.can_build(gguf):
            gguf_tokenizer.write_tokenizer_files(gguf, folder)
        if gguf_llama.can_convert(gguf):
            gguf_llama.config(gguf, None)
    except ModelError:
        return False
    finally:
        shutil.rmtree(folder)
    return True


def run_folder(data: bytes) -> bool:
    folder = _scratch() / "folder"
    folder.mkdir()
    try:
        for name, content in zip(_FILES, unpack(data), strict=False):
            if content:
                (folder / name).write_bytes(content)
        return _read_folder(folder)
    finally:
        shutil.rmtree(folder)


def _read_folder(folder: Path) -> bool:
    """As a frontend and an engine read it at their start. The parts are tried each for itself: none hides another."""
    was_taken = [_is_read(check_folder, folder), _is_read(fingerprint, folder), _is_read(load_chat_template, folder)]
    try:
        tokenizer = load_tokenizer(folder)
        expect(tokenizer.max_model_len > 0, f"a context of {tokenizer.max_model_len} tokens")
        expect(tokenizer.model_vocab_size > 0, f"a vocabulary of {tokenizer.model_vocab_size} tokens")
        expect(all(i >= 0 for i in tokenizer.stop_token_ids), f"stop tokens {tokenizer.stop_token_ids}")
    except ModelError:
        return False
    return all(was_taken)


def _is_read(read: Callable[[Path], object], folder: Path) -> bool:
    try:
        read(folder)
    except ModelError:
        return False
    return True


def mutate_safetensors(data: bytes, rng: Random) -> bytes:
    """The header as JSON with its length made right again, or any bytes."""
    length = int.from_bytes(data[:8], "little")
    if rng.randrange(4) == 0 or length > len(data):
        return mutate_bytes(data, rng)
    header = mutate_json(data[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def mutate_gguf(data: bytes, rng: Random) -> bytes:
    """The metadata as a tree in a file without tensors, or any bytes."""
    path = _scratch() / "mutated.gguf"
    path.write_bytes(data)
    try:
        metadata = read_gguf(path).metadata
    except ModelError:
        metadata = {}
    if not metadata or rng.randrange(3) == 0:
        return mutate_bytes(data, rng)
    changed = mutate_tree(metadata, rng, len(data))
    return gguf_bytes.file_of(changed if isinstance(changed, dict) else metadata)


def mutate_folder(data: bytes, rng: Random) -> bytes:
    return mutate_parcel(data, rng, _mutate_file)


def _mutate_file(place: int, content: bytes, rng: Random) -> bytes:
    name = _FILES[place] if place < len(_FILES) else ""
    if rng.randrange(20) == 0:
        return b""
    if name.endswith(".safetensors"):
        return mutate_safetensors(content, rng)
    return mutate_json(content or b"{}", rng) if name.endswith(".json") else mutate_bytes(content, rng)


def _safetensors_seeds() -> Iterable[tuple[str, bytes]]:
    data = bytes(range(20))
    header = {
        "__metadata__": {"format": "pt"},
        "first": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "second": {"dtype": "BF16", "shape": [2], "data_offsets": [16, 20]},
    }
    yield "two_tensors", _with_header(header, data)
    yield "none", _with_header({}, b"")


def _with_header(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _gguf_seeds() -> Iterable[tuple[str, bytes]]:
    path = _scratch() / "seed.gguf"
    yield "llama", tiny.write_gguf(path, tiny.metadata()).read_bytes()
    few = {"general.architecture": "gpt2", "a": 7, "b": 0.5, "c": True, "d": [1, -2], "e": ["x", "é"]}
    yield "few", tiny.write_gguf(path, few, {"first": (2, 3), "second": (4,)}).read_bytes()
    words = ["a", "b", "ab", "<s>"]
    vocabulary = {
        "general.architecture": "gpt2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [1, 1, 1, 3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
    }
    yield "vocabulary", tiny.write_gguf(path, vocabulary, {}).read_bytes()


def _folder_seeds() -> Iterable[tuple[str, bytes]]:
    scaled = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}
    lengths = {"max_position_embeddings": 2048, "eos_token_id": [1, 2], **scaled}
    more = {
        "generation_config.json": {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "eos_token_id": 2},
        "special_tokens_map.json": {"pad_token": {"content": "<|im_end|>"}},
        "model.safetensors.index.json": {"weight_map": {"weight": "model.safetensors"}},
    }
    yield "least", _folder_parcel({}, {})
    yield "whole", _folder_parcel(lengths, more, template="{% for m in messages %}{{ m.content }}{% endfor %}")


def _folder_parcel(config: dict[str, object], files: dict[str, object], *, template: str = "") -> bytes:
    folder = tiny.write_folder(_scratch() / "seed", config=config)
    for name, value in files.items():
        tiny.write_json(folder / name, value)
    if template:
        (folder / "chat_template.jinja").write_text(template)
    try:
        return pack((folder / name).read_bytes() if (folder / name).exists() else b"" for name in _FILES)
    finally:
        shutil.rmtree(folder)


SAFETENSORS = Target("safetensors", run_safetensors, mutate_safetensors, _safetensors_seeds)
GGUF = Target("gguf", run_gguf, mutate_gguf, _gguf_seeds)
FOLDER = Target("model_folder", run_folder, mutate_folder, _folder_seeds)
