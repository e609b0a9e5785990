"""What a client sees of its engine's death: kill -9 under load, and how long each moved stream was silent.

`python -m tests.bench.resume_gap MODEL_FOLDER DTYPE CLIENT`. One JSON object on stdout: the figure's name → its value.
The promise beside it: 0.3 s, and 1.3 times what computing the moved streams' tokens again takes at the prefill rate
that was measured a moment before. All moved streams share one engine, so the last of them waits for the tokens of all.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from tests.bench.contestants import our_server
from tests.bench.errors import BenchError
from tests.bench.load_client import LoadReport, check_report, run_client
from tests.bench.prompts import make_prompts, word_ids
from tests.bench.results import Figure
from tests.bench.server import RunningServer, free_port, role_of, running

STREAMS = (1, 16, 48)
PROMPT_TOKENS, MAX_TOKENS, TOKENS_BEFORE_THE_KILL = 128, 64, 16
PREFILL_TOKENS = 512
PROMISED_S, PROMISED_FACTOR = 0.3, 1.3
WAIT_S = 120.0


def _figures(what: str) -> dict[int, Figure]:
    return {streams: Figure(f"{what}, {streams} stream{'s' * (streams > 1)}", "s", "lower") for streams in STREAMS}


LONGEST = _figures("resume gap, the longest")
PROMISED = _figures("resume gap, as promised")
FIGURES: tuple[Figure, ...] = tuple(figure for n in STREAMS for figure in (LONGEST[n], PROMISED[n]))


def measure(folder: Path, dtype: str, client: Path) -> dict[str, float]:
    """Raises `BenchError` when a stream was not answered in full."""
    words = word_ids(folder)
    values: dict[str, float] = {}
    server = our_server(folder, free_port(), dtype=dtype, engines=2)
    logs = client.parent / "resume"
    with running(server, logs / "server.log", make_prompts(words, 1, PROMPT_TOKENS, seed="first")[0]) as process:
        for num_streams in STREAMS:
            _until(lambda: _series(process)["roundhouse_engines"] == 2, "two engines")
            rate = _prefill_rate(process, words, num_streams)
            longest_s, replayed = _kill_under_load(process, client, logs / str(num_streams), words, num_streams)
            values[LONGEST[num_streams].name] = longest_s
            values[PROMISED[num_streams].name] = PROMISED_S + replayed / rate * PROMISED_FACTOR
    return values


def _prefill_rate(process: RunningServer, words: list[int], num_streams: int) -> float:
    """Tokens a second of one prompt at a time: the best of three, since the first one of a size prepares kernels."""
    prompts = make_prompts(words, 3, PREFILL_TOKENS, seed=f"rate {num_streams}")
    seconds: list[float] = []
    for prompt in prompts:
        started = time.perf_counter()
        httpx.post(_url(process, "/v1/completions"), json=_whole(process.server.body(prompt, 1)), timeout=WAIT_S)
        seconds.append(time.perf_counter() - started)
    return PREFILL_TOKENS / min(seconds)


def _kill_under_load(
    process: RunningServer, client: Path, folder: Path, words: list[int], num_streams: int
) -> tuple[float, float]:
    """(the longest silence inside a stream, tokens that were computed again)."""
    prompts = make_prompts(words, num_streams, PROMPT_TOKENS, seed=f"resume {num_streams}")
    bodies = [process.server.body(prompt, MAX_TOKENS) for prompt in prompts]
    before = _series(process)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(
            run_client, client, process.server.port, bodies, folder, num_streams=num_streams, requests_each=1
        )
        wanted = before["roundhouse_generation_tokens_total"] + num_streams * TOKENS_BEFORE_THE_KILL
        _until(lambda: load.done() or _series(process)["roundhouse_generation_tokens_total"] >= wanted, "tokens")
        os.kill(_busiest_engine(process), signal.SIGKILL)
        report: LoadReport = load.result()
    check_report(report, num_requests=num_streams, prompt_tokens=PROMPT_TOKENS, max_tokens=MAX_TOKENS)
    after = _series(process)
    resumes, replayed = (
        after[name] - before[name]
        for name in ("roundhouse_mesh_resumes_total", "roundhouse_mesh_replayed_tokens_total")
    )
    if not resumes:
        raise BenchError("the engine that was killed had no stream")
    return max(report.gaps_us) / 1e6, replayed


def _busiest_engine(process: RunningServer) -> int:
    """By the processor time of a moment: with one stream only one of them works."""
    engines = [
        child
        for child in process.process.children(recursive=True)
        if role_of(child.cmdline(), is_root=False) == "engine"
    ]
    before = [sum(engine.cpu_times()[:2]) for engine in engines]
    time.sleep(0.2)
    used = [sum(engine.cpu_times()[:2]) - then for engine, then in zip(engines, before, strict=True)]
    return engines[used.index(max(used))].pid


def _series(process: RunningServer) -> dict[str, float]:
    """By name; series of one name are added up."""
    sums: dict[str, float] = {}
    for line in httpx.get(_url(process, "/metrics")).text.splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def _whole(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "stream_options"} | {"stream": False}


def _url(process: RunningServer, path: str) -> str:
    return f"http://127.0.0.1:{process.server.port}{path}"


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"no {what} in {WAIT_S:g} s")
        time.sleep(0.02)


if __name__ == "__main__":
    try:
        print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
    except (BenchError, httpx.HTTPError, psutil.Error, msgspec.DecodeError) as failure:
        sys.exit(str(failure))
