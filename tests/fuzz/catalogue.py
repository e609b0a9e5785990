"""Every target by its name, and how its seeds get into the corpus.

`python -m tests.fuzz.catalogue` writes the seeds that the corpus lacks. It never changes a file: inputs that once
failed are kept beside them.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.fuzz.target import Target

CORPUS = Path(__file__).parent / "corpus"

PLACES: dict[str, tuple[str, str]] = {
    "frames_to_engine": ("frames", "TO_ENGINE"),
    "frames_to_frontend": ("frames", "TO_FRONTEND"),
    "hello": ("hello", "HELLO"),
    "engine_input": ("engine", "ENGINE"),
    "frontend_outputs": ("frontend", "FRONTEND"),
    "http": ("http", "HTTP"),
    "http_bytes": ("http_bytes", "HTTP_BYTES"),
    "safetensors": ("model_files", "SAFETENSORS"),
    "gguf": ("model_files", "GGUF"),
    "model_folder": ("model_files", "FOLDER"),
}
"""The module in `targets` and the name there. Loaded one by one: a process that searches imports what it needs."""


def load(name: str) -> Target:
    module, attribute = PLACES[name]
    return getattr(import_module(f"tests.fuzz.targets.{module}"), attribute)


def inputs_of(name: str) -> dict[str, bytes]:
    """The corpus of that target by file name."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir()) if path.is_file()}


def main() -> None:
    for name in PLACES:
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        for seed, data in load(name).seeds():
            path = CORPUS / name / seed
            if not path.exists():
                path.write_bytes(data)


if __name__ == "__main__":
    main()
