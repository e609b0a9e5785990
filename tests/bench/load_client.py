"""The compiled load client: built when its sources are newer, run against a server, its report checked and read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.errors import BenchError

SOURCE = Path(__file__).with_name("sse_load.c")
SOURCES = (SOURCE, SOURCE.with_name("http_answer.h"), SOURCE.with_name("sse_event.h"))
TIMEOUT_S = 120.0


class LoadedRequest(msgspec.Struct, frozen=True):
    """One request as the client saw it; times in microseconds since its clock started. See sse_load.c."""

    stream: int
    status: int
    start_us: int
    ttft_us: int
    end_us: int
    num_events: int
    completion_tokens: int
    prompt_tokens: int
    is_done: bool
    error: str
    gaps_us: list[int]


class LoadReport(msgspec.Struct, frozen=True):
    """wall_s: until the last request ended. cpu_s: the client's own, user and system."""

    wall_s: float
    cpu_s: float
    requests: list[LoadedRequest]

    @property
    def gaps_us(self) -> list[int]:
        return [gap for request in self.requests for gap in request.gaps_us]

    @property
    def ttfts_us(self) -> list[int]:
        """Of the requests that had an event."""
        return [request.ttft_us for request in self.requests if request.ttft_us >= 0]


def build_client(build: Path) -> Path:
    """The client's path. Raises `BenchError` when there is no compiler or the build fails."""
    target = build / "sse_load"
    if target.exists() and target.stat().st_mtime > max(source.stat().st_mtime for source in SOURCES):
        return target
    build.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-o", str(target), str(SOURCE)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BenchError("the load client is compiled, and there is no gcc") from None
    if result.returncode:
        raise BenchError(f"the load client does not compile: {result.stderr.strip()[-400:]}")
    return target


def run_client(
    client: Path, port: int, bodies: Sequence[dict[str, Any]], folder: Path, *, num_streams: int, requests_each: int
) -> LoadReport:
    """`requests_each` requests on each of `num_streams` streams. bodies.jsonl and report.json stay in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bodies.jsonl").write_text("".join(json.dumps(body) + "\n" for body in bodies))
    numbers = [num_streams, requests_each, 0, TIMEOUT_S]
    command = [str(client), "127.0.0.1", str(port), str(folder / "bodies.jsonl"), *map(str, numbers)]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode:
        raise BenchError(f"the load client failed: {result.stderr.decode(errors='replace').strip()[-300:]}")
    (folder / "report.json").write_bytes(result.stdout)
    return msgspec.json.decode(result.stdout, type=LoadReport)


def check_report(report: LoadReport, *, num_requests: int, prompt_tokens: int, max_tokens: int) -> int:
    """The output tokens of all requests together.

    Raises `BenchError` unless every request was answered in full: what failed early must not count as fast. Where the
    server reports no usage the number asked for counts, since every request ran with ignore_eos to its [DONE].
    """
    failed = [request for request in report.requests if request.error]
    if failed:
        raise BenchError(f"{len(failed)} of {num_requests} requests failed: {failed[0].error}")
    if len(report.requests) != num_requests:
        raise BenchError(f"{len(report.requests)} of {num_requests} requests were made")
    for request in report.requests:
        if request.completion_tokens not in (-1, max_tokens):
            raise BenchError(f"an answer has {request.completion_tokens} tokens instead of {max_tokens}")
        if request.prompt_tokens not in (-1, prompt_tokens):
            raise BenchError(f"a prompt was counted as {request.prompt_tokens} tokens instead of {prompt_tokens}")
        if not request.is_done:
            raise BenchError("a stream ended without [DONE]")
    return num_requests * max_tokens
