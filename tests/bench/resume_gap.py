"""What a client sees of its engine's death: kill -9 under load, and how long each moved stream was silent.

`python -m tests.bench.resume_gap MODEL_FOLDER DTYPE CLIENT`. One JSON object on stdout: the figure's name → its value.
The promise beside it: 0.3 s, and 1.3 times what computing the moved streams' tokens again takes at the prefill rate
that was measured a moment before. All moved streams share one engine, so the last of them waits for the tokens of all.
The engine that was killed stays away meanwhile: where engines have machines of their own, its return costs the others
nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.bench.contestants import MAX_NUM_SEQS
from tests.bench.errors import BenchError
from tests.bench.load_client import LoadReport, check_report, run_client
from tests.bench.prompts import make_prompts, word_ids
from tests.bench.results import Figure
from tests.chaos.proxied_cluster import start_what_is_down
from tests.support.cluster import Cluster

STREAMS = (1, 16, 48)
PROMPT_TOKENS, MAX_TOKENS, TOKENS_BEFORE_THE_KILL = 128, 64, 16
PREFILL_TOKENS = 512
PROMISED_S, PROMISED_FACTOR = 0.3, 1.3
WAIT_S = 120.0
GENERATED = "roundhouse_generation_tokens_total"
REPLAYED = "roundhouse_mesh_replayed_tokens_total"
RESUMES = "roundhouse_mesh_resumes_total"


def _figures(what: str) -> dict[int, Figure]:
    return {streams: Figure(f"{what}, {streams} stream{'s' * (streams > 1)}", "s", "lower") for streams in STREAMS}


LONGEST = _figures("resume gap, the longest")
PROMISED = _figures("resume gap, as promised")
FIGURES: tuple[Figure, ...] = tuple(figure for n in STREAMS for figure in (LONGEST[n], PROMISED[n]))


def measure(folder: Path, dtype: str, client: Path) -> dict[str, float]:
    """Raises `BenchError` when a stream was not answered in full."""
    words = word_ids(folder)
    values: dict[str, float] = {}
    logs = client.parent / "resume"
    logs.mkdir(exist_ok=True)
    arguments = ("--dtype", dtype, "--max-num-seqs", str(MAX_NUM_SEQS), "--threads", str(_threads_each()))
    with Cluster(logs, str(folder), engine_arguments=arguments) as cluster:
        for num_streams in STREAMS:
            start_what_is_down(cluster)
            rate = _prefill_rate(cluster, words, num_streams)
            longest_s, replayed = _kill_under_load(cluster, client, logs / str(num_streams), words, num_streams)
            values[LONGEST[num_streams].name] = longest_s
            values[PROMISED[num_streams].name] = PROMISED_S + replayed / rate * PROMISED_FACTOR
    return values


def _threads_each() -> int:
    """Of the two engines, which share the machine's cores: more would have them wait for each other's threads."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def _prefill_rate(cluster: Cluster, words: list[int], num_streams: int) -> float:
    """Tokens a second of one prompt at a time: the best of several, since the first one of a size prepares kernels, at
    each of the engines."""
    prompts = make_prompts(words, 6, PREFILL_TOKENS, seed=f"rate {num_streams}")
    seconds: list[float] = []
    for prompt in prompts:
        started = time.perf_counter()
        answer = httpx.post(f"{cluster.frontends[0].url}/v1/completions", json=_body(prompt, 1), timeout=WAIT_S)
        answer.raise_for_status()
        seconds.append(time.perf_counter() - started)
    return PREFILL_TOKENS / min(seconds)


def _kill_under_load(
    cluster: Cluster, client: Path, folder: Path, words: list[int], num_streams: int
) -> tuple[float, float]:
    """(the longest silence inside a stream, tokens that were computed again)."""
    (frontend,) = cluster.frontends
    prompts = make_prompts(words, num_streams, PROMPT_TOKENS, seed=f"resume {num_streams}")
    bodies = [
        _body(prompt, MAX_TOKENS) | {"stream": True, "stream_options": {"include_usage": True}} for prompt in prompts
    ]
    before = frontend.metrics()
    port = int(frontend.url.rpartition(":")[2])
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(run_client, client, port, bodies, folder, num_streams=num_streams, requests_each=1)
        wanted = before[GENERATED] + num_streams * TOKENS_BEFORE_THE_KILL
        deadline = time.monotonic() + WAIT_S
        while not load.done() and frontend.metrics()[GENERATED] < wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        cluster.holder().kill()
        report: LoadReport = load.result()
    check_report(report, num_requests=num_streams, prompt_tokens=PROMPT_TOKENS, max_tokens=MAX_TOKENS)
    after = frontend.metrics()
    if _resumes(after) == _resumes(before):
        raise BenchError("the engine that was killed had no stream")
    return max(report.gaps_us) / 1e6, after[REPLAYED] - before[REPLAYED]


def _resumes(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith(RESUMES))


def _body(prompt: list[int], max_tokens: int) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


if __name__ == "__main__":
    try:
        print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
    except (BenchError, httpx.HTTPError, msgspec.DecodeError) as failure:
        sys.exit(str(failure))
