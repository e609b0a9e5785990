"""A frontend and engines as a cluster runs them: separate commands, tcp on loopback, in any order."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.free_ports import free_port_pair
from tests.support.serve_process import COMMAND

pytestmark = pytest.mark.timeout(200)


@contextmanager
def command(log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=subprocess.DEVNULL, stderr=stderr, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(60)


def eventually(condition: Callable[[], bool], log: Path, *, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_frontend_first_then_engine_then_neither(
    host: str, tmp_path: Path, smollm2_folder: Path, free_tcp_port: int
) -> None:
    log = tmp_path / "log"
    mesh = f"tcp://{f'[{host}]' if ':' in host else host}:{free_port_pair(host)}"
    url = f"http://127.0.0.1:{free_tcp_port}"

    def health() -> tuple[int, str]:
        try:
            answer = httpx.get(f"{url}/health")
        except httpx.TransportError:
            return 0, ""
        return answer.status_code, answer.text

    arguments = ("frontend", "smollm2", "--port", str(free_tcp_port), "--mesh-bind", mesh, "--wait-timeout", "0")
    with command(log, *arguments):
        # The door that wakes engines stays open while there is none.
        eventually(lambda: health() == (200, "asleep"), log)
        body = {"model": "smollm2", "prompt": "Hello", "max_tokens": 4}
        refused = httpx.post(f"{url}/v1/completions", json=body)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")

        with command(log, "engine", "smollm2", "--frontends", mesh, "--identity", "e-0") as engine:
            eventually(lambda: health() == (200, ""), log)
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
            assert answer.json()["usage"]["completion_tokens"] == 4
            engine.send_signal(signal.SIGTERM)
            assert engine.wait(30) == 0
        eventually(lambda: health() == (200, "asleep"), log, timeout_s=10)


def test_an_engine_waits_for_its_frontend_and_outlives_it(
    tmp_path: Path, smollm2_folder: Path, free_tcp_port: int
) -> None:
    log = tmp_path / "log"
    mesh = f"tcp://127.0.0.1:{free_port_pair('127.0.0.1')}"
    body = {"model": "smollm2", "prompt": "Hello", "max_tokens": 4}
    with command(log, "engine", "smollm2", "--frontends", mesh, "--identity", "e-0") as engine:
        for _ in range(2):
            with command(log, "frontend", "smollm2", "--port", str(free_tcp_port), "--mesh-bind", mesh) as frontend:

                def answered() -> bool:
                    try:
                        return httpx.post(
                            f"http://127.0.0.1:{free_tcp_port}/v1/completions", json=body, timeout=60
                        ).is_success
                    except httpx.TransportError:
                        return False

                eventually(answered, log)
                frontend.kill()
        assert engine.poll() is None
