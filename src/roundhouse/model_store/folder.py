"""A model folder: what the rest of Roundhouse reads a model from, and the checks that make it one.

It holds config.json, safetensors weights, tokenizer.json, tokenizer_config.json, and where the model has them
generation_config.json and chat_template.jinja. Python files in it are never imported and pickles never opened.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roundhouse.model_store import safetensors_file
from roundhouse.model_store.errors import ModelFolderInvalid

PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")

SLOW_TOKENIZERS = (
    ("tokenizer.model",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
)
"""Files that tokenizers were kept in before tokenizer.json; each group is enough to make one from."""

_INDEX = "model.safetensors.index.json"
_NOT_THE_MODEL = ("consolidated", "adapter_model")
"""Beginnings of safetensors names that are a second copy of the weights or not a model's."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """`name` is what the user typed, which is also the name it is served under by default."""

    path: Path
    name: str


def check_folder(path: Path, *, weights: bool = True) -> None:
    """Raises `ModelFolderInvalid` that names all `path` lacks; `weights=False` asks for a frontend's part only."""
    try:
        names = {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise ModelFolderInvalid(f"model folder {path} cannot be read: {error.strerror}") from error
    missing = missing_parts(names, weights=weights)
    if missing:
        raise ModelFolderInvalid(f"model folder {path} has no {', no '.join(missing)}{hint(names)}")
    read_json(path / "config.json")
    if weights:
        for file in weight_files(path):
            safetensors_file.read_header(file)


def missing_parts(names: set[str], *, weights: bool) -> list[str]:
    """What a folder with these file names lacks, in words for an error; the hub client asks before it downloads."""
    missing = []
    if "config.json" not in names:
        missing.append("config.json")
    if weights and not any(is_weight_file(name) for name in names):
        missing.append("*.safetensors")
    if "tokenizer.json" not in names and not has_slow_tokenizer(names):
        missing.append("tokenizer.json")
    return missing


def has_slow_tokenizer(names: set[str]) -> bool:
    return any(names.issuperset(group) for group in SLOW_TOKENIZERS)


def is_weight_file(name: str) -> bool:
    return name.endswith(".safetensors") and not name.startswith(_NOT_THE_MODEL)


def weight_files(path: Path) -> list[Path]:
    """The files that hold the weights, sorted by name: those the index lists, or else every safetensors file."""
    index = path / _INDEX
    if not index.exists():
        return sorted(file for file in path.iterdir() if is_weight_file(file.name))
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(_is_plain_name(name) for name in weight_map.values()):
        raise ModelFolderInvalid(f"{index} has no weight_map of file names")
    # A name is looked up among those that are there: the system would not even be asked for some that a file can hold.
    present = {entry.name for entry in path.iterdir() if entry.exists()}
    files = [path / name for name in sorted(set(weight_map.values()))]
    absent = [file.name for file in files if file.name not in present]
    if absent:
        raise ModelFolderInvalid(f"model folder {path} has no {', no '.join(absent)}, which {_INDEX} lists")
    return files


def read_bytes(path: Path) -> bytes:
    """A file of the folder. Raises `ModelFolderInvalid` when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelFolderInvalid(f"{path} cannot be read: {error.strerror}") from error


def read_text(path: Path) -> str:
    """A text of the folder. Raises `ModelFolderInvalid` when it cannot be read or is no UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ModelFolderInvalid(f"{path} is not a text in UTF-8: {error.reason} at byte {error.start}") from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the folder. Raises `ModelFolderInvalid` when it is anything else."""
    try:
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ModelFolderInvalid(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFolderInvalid(f"{path} is not a JSON object")
    return value


def read_json_if_any(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _is_plain_name(name: object) -> bool:
    return isinstance(name, str) and name == Path(name).name and is_weight_file(name)


def hint(names: set[str]) -> str:
    """Why the parts may be missing, when the file names tell."""
    pickled = sorted(name for name in names if name.endswith(PICKLED_SUFFIXES))
    if pickled and not any(is_weight_file(name) for name in names):
        return f"; only safetensors are read, never pickles such as {pickled[0]}, because unpickling runs code"
    gguf = sorted(name for name in names if name.endswith(".gguf"))
    if gguf:
        return f"; to serve a GGUF file, name the file: {gguf[0]}"
    if "adapter_config.json" in names:
        return "; it holds a LoRA adapter, not a model"
    return ""
