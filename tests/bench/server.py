"""A server under measurement: a real process and its tree, started, awaited, weighed and ended."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from tests.bench.errors import BenchError

READY_TIMEOUT_S = 300.0
END_TIMEOUT_S = 40.0
_ASK_EVERY_S = 0.02
_MIB = 2**20


@dataclass(frozen=True)
class BenchServer:
    """How to run one OpenAI server.

    name: what the table calls it. precision: of the weights and activations, in words. command: runs in the foreground
    and listens on 127.0.0.1:`port`. env: set on top of this process's environment. model: its name in request bodies.
    extra_body: fields that every request body gets besides (such as {"ignore_eos": true}).
    """

    name: str
    precision: str
    command: list[str]
    env: dict[str, str]
    model: str
    port: int
    extra_body: dict[str, Any] = field(default_factory=dict)

    def body(self, prompt_token_ids: list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
        """A streaming /v1/completions body; greedy unless `fields` say otherwise."""
        return {
            "model": self.model,
            "prompt": prompt_token_ids,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra_body,
            **fields,
        }


@dataclass(frozen=True)
class RunningServer:
    """ready_s: from exec to the first streamed token of a real request."""

    server: BenchServer
    process: psutil.Popen
    ready_s: float

    def peak_rss_mib(self) -> dict[str, float]:
        """Peak resident memory by role so far, and of `all processes` together (shared pages count in each).

        Raises `BenchError` when the server is gone.
        """
        peaks: dict[str, float] = {}
        try:
            tree = [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            raise BenchError(f"{self.server.name} has ended") from None
        for process in tree:
            try:
                role = role_of(process.cmdline(), is_root=process.pid == self.process.pid)
                peak = _peak_rss_bytes(process.pid) / _MIB
            except (psutil.Error, OSError):
                continue  # ended meanwhile
            peaks[role] = peaks.get(role, 0.0) + peak
        total = sum(peaks.values())
        if "engine" not in peaks:
            # One process is both: neither half can be told from it.
            peaks.pop("frontend", None)
        return {**peaks, "all processes": total}


def role_of(command: list[str], *, is_root: bool) -> str:
    """frontend, engine or other: the process that was started answers HTTP, an engine or its worker says so in its
    command line."""
    if is_root:
        return "frontend"
    says = " ".join(command).lower()
    return "engine" if "engine" in says or "worker" in says else "other"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def running(server: BenchServer, log: Path, first_prompt: list[int]) -> Iterator[RunningServer]:
    """Starts the server, output to `log`, and ends its whole tree with the block.

    Raises `BenchError`, with the end of the log, when it ends or streams no token in `READY_TIMEOUT_S`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        started = time.perf_counter()
        process = _start(server, output)
    try:
        _await_first_token(server, process, first_prompt, log)
        yield RunningServer(server, process, time.perf_counter() - started)
    finally:
        _end(process)


def _start(server: BenchServer, output: BinaryIO) -> psutil.Popen:
    # A session of its own: Ctrl-C reaches the bench alone, which ends its servers in order. The kernel does it for a
    # bench that was killed.
    tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
    return psutil.Popen(
        [*tied, *server.command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **server.env},
        start_new_session=True,
    )


def _await_first_token(server: BenchServer, process: psutil.Popen, prompt: list[int], log: Path) -> None:
    body = json.dumps(server.body(prompt, 1)).encode()
    deadline = time.monotonic() + READY_TIMEOUT_S
    answer = "no answer"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"{server.name} ended with exit code {process.returncode}: {_tail(log)}")
        try:
            status, answer = _first_event(server.port, body)
        except (OSError, http.client.HTTPException) as error:
            status, answer = 0, str(error)
        if status == 200:
            return
        if 400 <= status < 500 and status not in (404, 408, 425, 429):
            raise BenchError(f"{server.name} refuses the request with status {status}: {answer}")
        time.sleep(_ASK_EVERY_S)
    raise BenchError(f"{server.name} streamed no token in {READY_TIMEOUT_S:g} s ({answer}): {_tail(log)}")


def _first_event(port: int, body: bytes) -> tuple[int, str]:
    """Status and first event of a stream, read to its end so that nothing of it runs on into a measurement."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_TIMEOUT_S)
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    finally:
        connection.close()
    first = next((line for line in text.splitlines() if line.strip()), "")[:300]
    if response.status == 200 and not (first.startswith("data:") and '"choices"' in first):
        return 0, first
    return response.status, first


def _end(process: psutil.Popen) -> None:
    """SIGTERM, then SIGKILL for whoever of its tree is left."""
    try:
        tree = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = [process]
    if process.poll() is None:
        process.terminate()
    _, left = psutil.wait_procs(tree, timeout=END_TIMEOUT_S)
    for straggler in left:
        try:
            straggler.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(left, timeout=5)


def _peak_rss_bytes(pid: int) -> int:
    return peak_rss_bytes(Path(f"/proc/{pid}/status").read_text())


def peak_rss_bytes(status: str) -> int:
    """VmHWM of a /proc/PID/status; 0 for a process that has no memory any more."""
    fields: Mapping[str, str] = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields.get("VmHWM", "0 kB").split()[0]) * 1024


def _tail(log: Path) -> str:
    """The last lines that say something, on one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-400:] or "it wrote nothing"
