"""The peer llama.cpp: `llama-server`, compiled for this machine from the sources inside llama-cpp-python's sdist.

It serves the embedded model's GGUF file as it is, or the same weights as bfloat16 for a comparison at like precision.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from pathlib import Path

from roundhouse.model_store.cache import file_key
from tests.bench.errors import BenchError
from tests.bench.peer_install import install_once, make_environment, pip, run_step, say, usable_cpus
from tests.bench.server import BenchServer

SDIST = "llama-cpp-python==0.3.36"
TOOLS = ("cmake==4.4.5", "ninja==1.13.2")
TARGETS = ("llama-server", "llama-quantize")
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # the build would download it
    "-DLLAMA_BUILD_NUMBER=0",  # git would be asked, which knows only the repository around it
    "-DLLAMA_BUILD_COMMIT=unknown",
    "-DCMAKE_C_FLAGS=-w",
    "-DCMAKE_CXX_FLAGS=-w",
)
SLOT_TOKENS = 2048
"""Room of one stream, prompt and output."""

_AMX_SOURCE = Path("ggml/src/ggml-cpu/amx/mmq.cpp")
_VENDORED = re.compile(r"[^/]+/vendor/llama\.cpp/(.+)")
_LOAD_CONFIG = re.compile(r"^(?P<indent>[ \t]*)_tile_loadconfig\((?P<config>&\w+)\);$", re.MULTILINE)
_BARRIER = r'\g<indent>asm volatile("" : : "r"(\g<config>) : "memory");\n\g<0>'


def install(build: Path) -> Path:
    """The folder under `build` with the compiled server: three to ten minutes the first time, and on another processor.

    Needs a C++ compiler; cmake and ninja come from the package index. Raises `BenchError`.
    """
    return install_once(build / "peers" / "llama.cpp", contents(Path("/proc/cpuinfo").read_text()), _fill)


def contents(cpuinfo: str) -> str:
    """All that the programs are made of; a change of it compiles them anew."""
    return "\n".join((SDIST, *TOOLS, *TARGETS, *OPTIONS, _LOAD_CONFIG.pattern, _BARRIER, processor(cpuinfo)))


def processor(cpuinfo: str) -> str:
    """What `-march=native` depends on, out of /proc/cpuinfo: the first processor's name and flags."""
    first = cpuinfo.split("\n\n", 1)[0]
    fields = dict(line.split(":", 1) for line in first.splitlines() if ":" in line)
    named = {name.strip(): value.split() for name, value in fields.items()}
    return " ".join([*named.get("model name", []), *sorted(named.get("flags", []))])


def with_tile_config_in_memory(source: str) -> str:
    """`source` with a barrier before each load of the AMX tile configuration.

    GCC before 13 believes that the load reads 8 of the 64 bytes and drops the stores to the rest: the server would die
    of SIGILL at its first tile. Raises `BenchError` when there is no such load, since that fault would come unnoticed.
    """
    patched, count = _LOAD_CONFIG.subn(_BARRIER, source)
    if count == 0:
        raise BenchError(f"{_AMX_SOURCE} of {SDIST} loads no tile configuration")
    return patched


def server(installed: Path, gguf: Path, port: int, *, max_num_seqs: int) -> BenchServer:
    """The server of a GGUF file as it is: 4-bit weights with an 8-bit head in the embedded model's."""
    return _server("llama.cpp", "q4_1", installed, gguf, port, max_num_seqs)


def server_bf16(installed: Path, gguf: Path, port: int, *, max_num_seqs: int) -> BenchServer:
    """The server of the same weights as bfloat16; the first call writes them beside the programs, in a few seconds."""
    return _server("llama.cpp bf16", "bf16", installed, _as_bf16(installed, gguf), port, max_num_seqs)


def _server(name: str, precision: str, installed: Path, gguf: Path, port: int, max_num_seqs: int) -> BenchServer:
    threads = str(len(usable_cpus()))
    command = [
        str(_program(installed, "llama-server")),
        *("--model", str(gguf), "--alias", gguf.stem, "--offline"),
        *("--host", "127.0.0.1", "--port", str(port), "--no-ui"),
        *("--threads", threads, "--threads-batch", threads),
        *("--parallel", str(max_num_seqs), "--ctx-size", str(max_num_seqs * SLOT_TOKENS)),
        # No prompt is ever seen twice: keeping states of ended requests would only cost.
        *("--cache-ram", "0", "--ctx-checkpoints", "0"),
        *("--log-verbosity", "1"),
    ]
    return BenchServer(
        name=name,
        precision=precision,
        command=command,
        env={},
        model=gguf.stem,
        port=port,
        extra_body={"ignore_eos": True, "cache_prompt": False},
    )


def _as_bf16(installed: Path, gguf: Path) -> Path:
    wide = installed / f"{gguf.stem}.bf16-{file_key(gguf, with_mtime=True)[:16]}.gguf"
    if not wide.exists():
        partial = wide.with_suffix(".partial")
        quantize = str(_program(installed, "llama-quantize"))
        run_step(installed, [quantize, "--allow-requantize", str(gguf), str(partial), "BF16", str(len(usable_cpus()))])
        partial.rename(wide)
    return wide


def _program(installed: Path, name: str) -> Path:
    return installed / "bin" / name


def _fill(folder: Path) -> None:
    say(f"compiling llama.cpp's server from {SDIST} in {folder}: 3-10 minutes")
    work = folder / "work"
    work.mkdir()
    tools = make_environment(work, TOOLS).parent
    run_step(work, [*pip(), "download", "--no-deps", "--no-binary", "llama-cpp-python", SDIST, "-d", str(work)])
    (sdist,) = work.glob("llama_cpp_python-*.tar.gz")
    sources, built = work / "sources", work / "build"
    _unpack(sdist, sources)
    amx = sources / _AMX_SOURCE
    amx.write_text(with_tile_config_in_memory(amx.read_text()))
    cmake, ninja = str(tools / "cmake"), ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    run_step(work, [cmake, "-S", str(sources), "-B", str(built), *ninja, *OPTIONS])
    run_step(work, [cmake, "--build", str(built), "--target", *TARGETS])
    (folder / "bin").mkdir()
    for target in TARGETS:
        shutil.move(built / "bin" / target, folder / "bin" / target)
    shutil.rmtree(work)


def _unpack(sdist: Path, sources: Path) -> None:
    """llama.cpp alone out of the sdist of its Python binding."""
    with tarfile.open(sdist) as archive:
        members = []
        for member in archive:
            if found := _VENDORED.fullmatch(member.name):
                members.append(member.replace(name=found[1], deep=False))
        archive.extractall(sources, members, filter="data")
