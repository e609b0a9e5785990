"""API keys at a frontend as it runs: a process of its own, its port, its log, and files that change under it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from tests.support.free_ports import free_tcp_port
from tests.support.serve_process import COMMAND, ServeProcess

WAIT_S = 60.0
KEYS = ("rh-first-key-of-the-test", "rh-second-key-of-the-test", "rh-third-key-of-the-test")
PROBES = ("/health", "/ping", "/version")


class Frontend:
    """`roundhouse frontend` on free ports; it has no engine, and needs none to say who may come in."""

    def __init__(self, log: Path, *arguments: str, host: str = "127.0.0.1", **environment: str) -> None:
        self.log = log
        port = free_tcp_port()
        self.url = f"http://127.0.0.1:{port}"
        mesh = f"ipc://{log.parent}/mesh"
        command = [*COMMAND, "frontend", "smollm2", "--host", host, "--port", str(port), "--mesh-bind", mesh]
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, "--wait-timeout", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while text not in self.text():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def status(self, path: str, key: str | None = None) -> int:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.get(f"{self.url}{path}", headers=headers, timeout=WAIT_S).status_code


@contextlib.contextmanager
def frontend(tmp_path: Path, *arguments: str, host: str = "127.0.0.1", **environment: str) -> Iterator[Frontend]:
    started = Frontend(tmp_path / "log", *arguments, host=host, **environment)
    try:
        started.wait_for("serving ")
        yield started
    finally:
        started.process.send_signal(signal.SIGTERM)
        started.process.wait(WAIT_S)


def write_atomically(file: Path, text: str) -> None:
    """As a Secret's mount is changed: by renaming."""
    new = file.with_name(f".{file.name}")
    new.write_text(text)
    new.rename(file)


def test_keys_rotate_under_a_running_server_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "ann").write_text(KEYS[0])
    with frontend(tmp_path, "--api-key-file", str(folder), "--cache-salt-per-key") as served:
        assert [served.status(path) for path in PROBES] == [200] * 3
        assert [served.status(path) for path in ("/metrics", "/v1/models", "/", "/docs", "/nope")] == [401] * 5
        assert [served.status("/v1/models", key) for key in KEYS] == [200, 401, 401]
        assert served.status("/metrics", KEYS[0]) == 200

        write_atomically(folder / "bob", KEYS[1])
        served.wait_for("2 API keys from here on")
        assert [served.status("/v1/models", key) for key in KEYS] == [200, 200, 401]

        write_atomically(folder / "ann", f"{KEYS[2]} and more words than a line has")
        served.wait_for("the API keys stay as they are: ann, line 1")
        assert [served.status("/v1/models", key) for key in KEYS] == [200, 200, 401]

        (folder / "ann").unlink()
        served.wait_for("1 API keys from here on")
        assert [served.status("/v1/models", key) for key in KEYS] == [401, 200, 401]

        (folder / "bob").unlink()
        served.wait_for("the API keys stay as they are: 1 to 1024 API keys are needed, and 0 are given")
        assert [served.status("/v1/models", key) for key in KEYS] == [401, 200, 401]
        assert [key for key in KEYS if key in served.text()] == []


def test_a_key_of_the_environment_and_openais_client(tmp_path: Path) -> None:
    with frontend(tmp_path, ROUNDHOUSE_API_KEY=KEYS[0]) as served:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEYS[0], max_retries=0) as sdk:
            assert [model.id for model in sdk.models.list()] == ["smollm2"]
        with (
            openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEYS[1], max_retries=0) as sdk,
            pytest.raises(openai.AuthenticationError) as raised,
        ):
            sdk.models.list()
        assert (raised.value.code, raised.value.type) == ("invalid_api_key", "invalid_request_error")
        assert KEYS[0] not in " ".join(psutil.Process(served.process.pid).cmdline())
        assert [key for key in KEYS if key in served.text()] == []


def test_a_server_open_to_others_without_keys_says_so(tmp_path: Path) -> None:
    with frontend(tmp_path, host="0.0.0.0") as served:
        assert served.status("/v1/models") == 200
        assert "no API keys are set and 0.0.0.0 is open to others" in served.text()


def test_serve_shows_its_metrics_and_keeps_its_key_from_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUNDHOUSE_API_KEY", KEYS[0])
    with ServeProcess(tmp_path / "log", "smollm2") as served:
        statuses = {path: httpx.get(f"{served.url}{path}").status_code for path in (*PROBES, "/metrics", "/v1/models")}
        assert statuses == {**dict.fromkeys((*PROBES, "/metrics"), 200), "/v1/models": 401}
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEYS[0], max_retries=0) as sdk:
            answer = sdk.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=2)
        assert answer.choices[0].text
        (engine,) = served.engine_pids()
        assert "ROUNDHOUSE_API_KEY" not in psutil.Process(engine).environ()
        assert KEYS[0] not in served.log.read_text()
