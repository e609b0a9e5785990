"""What encryption costs: the same work on a mesh without keys and on a closed one, in turn.

`python -m tests.bench.encryption TINY_MODEL_FOLDER DTYPE CLIENT`. One JSON object on stdout: the figure's name → its
value. One frontend and one engine over loopback tcp serve a model that costs nothing, so that the mesh's share is as
large as it can be; then large frames alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec

from roundhouse.cli.key_store import KeyStore
from tests.bench import large_frames
from tests.bench.contestants import MAX_NUM_SEQS
from tests.bench.errors import BenchError
from tests.bench.load_client import check_report, run_client
from tests.bench.prompts import word_ids
from tests.bench.results import Figure
from tests.bench.server import BenchServer
from tests.bench.stages import WARM_UP, Stage
from tests.support.cluster import Cluster

STAGES = (
    Stage("1 stream", num_streams=1, requests_each=3, max_tokens=128),
    Stage("16 streams", num_streams=16, requests_each=2, max_tokens=128),
    Stage("64 streams", num_streams=64, requests_each=2, max_tokens=128),
)
TURNS = (False, True, True, False)
"""With keys or without: what grows slower or faster meanwhile takes as much from both."""

FRAMES = {"64 KiB": 2**16, "1 MiB": 2**20, "8 MiB": 2**23}
BYTES_OF_A_TURN = 2**28

_MESH = {False: "plain", True: "CURVE"}

THROUGHPUT = {
    (stage.name, with_keys): Figure(f"mesh throughput, {mesh}, {stage.name}", "tokens/s", "higher")
    for stage in STAGES
    for with_keys, mesh in _MESH.items()
}
WIRE = {
    (size, with_keys): Figure(f"wire alone, large frames, {mesh}, {size}", "MB/s", "higher")
    for size in FRAMES
    for with_keys, mesh in _MESH.items()
}
FIGURES: tuple[Figure, ...] = (*THROUGHPUT.values(), *WIRE.values())


def measure(folder: Path, dtype: str, client: Path) -> dict[str, float]:
    """Raises `BenchError` when a request was not answered in full."""
    return {**_throughput(folder, dtype, client), **_wire()}


def _throughput(folder: Path, dtype: str, client: Path) -> dict[str, float]:
    """tokens/s of both turns of each mesh together."""
    logs = client.parent / "encryption"
    words = word_ids(folder)
    with ExitStack() as stack:
        clusters = {
            with_keys: stack.enter_context(_cluster(logs / mesh, folder, dtype, with_keys=with_keys))
            for with_keys, mesh in _MESH.items()
        }
        for with_keys, cluster in clusters.items():
            _load(cluster, WARM_UP, client, logs / _MESH[with_keys] / "load", words)
        values: dict[str, float] = {}
        for stage in STAGES:
            seconds = dict.fromkeys(clusters, 0.0)
            for turn, with_keys in enumerate(TURNS):
                # Prompts of its own for each turn: none is in the cache already.
                here = replace(stage, name=f"{stage.name}, turn {turn}")
                load = logs / _MESH[with_keys] / "load"
                seconds[with_keys] += _load(clusters[with_keys], here, client, load, words)
            values |= {THROUGHPUT[stage.name, each].name: rate for each, rate in rates(stage, seconds).items()}
    return values


def rates(stage: Stage, seconds: Mapping[bool, float]) -> dict[bool, float]:
    """tokens/s. seconds: of all turns, with keys and without."""
    return {
        with_keys: TURNS.count(with_keys) * stage.num_requests * stage.max_tokens / spent
        for with_keys, spent in seconds.items()
    }


def _cluster(folder: Path, model: Path, dtype: str, *, with_keys: bool) -> Cluster:
    folder.mkdir(parents=True, exist_ok=True)
    keys = folder / "keys"
    if with_keys and not keys.exists():
        KeyStore(keys).create(["e-0"])
    arguments = ("--dtype", dtype, "--max-num-seqs", str(MAX_NUM_SEQS))
    return Cluster(
        folder, str(model), num_engines=1, engine_arguments=arguments, tcp=True, keys=keys if with_keys else None
    )


def _load(cluster: Cluster, stage: Stage, client: Path, folder: Path, words: list[int]) -> float:
    """The seconds until the last request ended."""
    port = int(cluster.frontends[0].url.rpartition(":")[2])
    server = BenchServer("", "", [], {}, "m", port, {"ignore_eos": True})
    bodies = stage.bodies(server, words)
    report = run_client(client, port, bodies, folder, num_streams=stage.num_streams, requests_each=stage.requests_each)
    check_report(
        report, num_requests=stage.num_requests, prompt_tokens=stage.prompt_tokens, max_tokens=stage.max_tokens
    )
    return report.wall_s


def _wire() -> dict[str, float]:
    """The best turn of each."""
    values: dict[str, float] = {}
    for size, num_bytes in FRAMES.items():
        for with_keys in TURNS:
            name = WIRE[size, with_keys].name
            rate = large_frames.mb_per_s(num_bytes, BYTES_OF_A_TURN // num_bytes, with_keys=with_keys)
            values[name] = max(values.get(name, 0.0), rate)
    return values


if __name__ == "__main__":
    try:
        print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
    except (BenchError, httpx.HTTPError, msgspec.DecodeError) as failure:
        sys.exit(str(failure))
