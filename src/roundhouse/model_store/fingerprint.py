"""What makes two engines' weights the same weights: part of the resume key, so a stream never moves to other ones."""

from __future__ import annotations

import hashlib
from pathlib import Path

from roundhouse.model_store import safetensors_file
from roundhouse.model_store.folder import read_bytes, weight_files

_SAMPLE_BYTES = 2**20
_WHOLE_FILES = ("config.json", "tokenizer.json")


def fingerprint(folder: Path) -> str:
    """SHA-256, in hex, over config, tokenizer, and of each weights file its name, size, header, first and last MiB.

    Milliseconds for any size of model. Where the folder lies does not count, nor what else is in it. Raises
    `ModelFolderInvalid` for a file that is missing or damaged.
    """
    digest = hashlib.sha256()
    for name in _WHOLE_FILES:
        _add(digest, name, read_bytes(folder / name))
    for file in weight_files(folder):
        size = file.stat().st_size
        _add(digest, file.name, str(size).encode())
        _add(digest, "header", safetensors_file.read_header(file))
        with file.open("rb") as data:
            _add(digest, "first", data.read(_SAMPLE_BYTES))
            data.seek(max(0, size - _SAMPLE_BYTES))
            _add(digest, "last", data.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _add(digest: hashlib._Hash, label: str, value: bytes) -> None:
    """Each part with its length before it, so that no two different folders feed the same bytes."""
    digest.update(f"{label} {len(value)}\n".encode())
    digest.update(value)
