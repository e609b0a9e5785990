"""What goes wrong at the start is one clear line and a non-zero exit code within five seconds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.support.serve_process import COMMAND, run_command

LONGEST_S = 30.0
"""Five seconds is the promise on a machine of one's own; a test also runs on busy ones."""


def refused(*arguments: str) -> tuple[int, str]:
    """Exit code and last line of stderr of a command that has to fail soon."""
    started = time.monotonic()
    done = run_command(*arguments)
    assert time.monotonic() - started < LONGEST_S
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, line = refused("serve", "smollm2", "--port", str(port))
    assert code == 2
    assert line == (
        f"roundhouse: error: cannot listen on 127.0.0.1:{port}: Address already in use; is another server running?"
    )


def test_no_such_address() -> None:
    code, line = refused("serve", "smollm2", "--host", "203.0.113.7")
    assert code == 2
    assert line.startswith("roundhouse: error: cannot listen on 203.0.113.7:8000: ")


@pytest.mark.parametrize("command", ["serve", "engine", "frontend"])
def test_no_such_model_folder(command: str) -> None:
    arguments = ["--port", "0"] if command == "serve" else ["--mesh-bind", "ipc:///tmp/rh-none"] * (command != "engine")
    assert refused(command, "./nowhere", *arguments) == (
        1,
        "roundhouse: error: model folder './nowhere' does not exist",
    )


def test_a_hub_id_offline() -> None:
    code, line = refused("serve", "someone/some-model", "--port", "0")
    assert code == 1
    assert line.startswith("roundhouse: error: someone/some-model")


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code, line = refused("serve", str(tmp_path), "--port", "0")
    assert code == 1
    assert "has no *.safetensors, no tokenizer.json" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--no-such-flag"], "Error: No such option '--no-such-flag'."),
        (["serve", "--port", "http"], "Error: Invalid value for '--port': 'http' is not a valid integer range."),
        (["serve", "--engines", "0"], "Error: Invalid value for '--engines': 0 is not in the range 1<=x<=64."),
        (["serve", "--kv-cache-memory", "lots"], "Error: Invalid value for '--kv-cache-memory': 'lots' is not a size"),
        (["serve", "--dtype", "int4"], "Error: Invalid value for '--dtype': 'int4' is not one of"),
        (["nothing"], "Error: No such command 'nothing'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_flags(arguments: list[str], said: str) -> None:
    code, line = refused(*arguments)
    assert code == 2
    assert line.startswith(said)


def test_a_context_that_the_model_does_not_have(smollm2_folder: Path) -> None:
    code, line = refused("serve", "smollm2", "--port", "0", "--max-model-len", "100000")
    assert (code, line) == (2, "roundhouse: error: --max-model-len 100000 is over what smollm2 serves: 8192")


def test_an_engine_with_too_little_memory_ends_the_command(smollm2_folder: Path) -> None:
    done = run_command("serve", "smollm2", "--port", "0", "--kv-cache-memory", "1MiB", timeout_s=60)
    assert done.returncode == 2
    assert "one sequence of 8192 tokens needs" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_while_the_model_is_converted_is_obeyed_at_once(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        serve = subprocess.Popen(
            [*COMMAND, "serve", "smollm2", "--port", "0"],
            stderr=log,
            env={**os.environ, "ROUNDHOUSE_CACHE": str(tmp_path)},
        )
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while not any("roundhouse.model_store.convert" in child.cmdline() for child in children):
        assert time.monotonic() < deadline
        assert serve.poll() is None
        time.sleep(0.01)
        children = psutil.Process(serve.pid).children()
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(20) == 0
    _, left = psutil.wait_procs(children, timeout=10)
    assert left == []


def test_a_mesh_beyond_loopback_needs_a_word() -> None:
    code, line = refused("frontend", "smollm2", "--port", "0", "--mesh-bind", "tcp://0.0.0.0:5570")
    assert code == 2
    assert "--insecure-mesh" in line


def test_help_lists_the_commands() -> None:
    done = run_command("--help")
    assert done.returncode == 0
    for command in ("serve", "frontend", "engine", "version"):
        assert f"\n  {command} " in done.stdout


def test_an_engine_that_still_loads_leaves_at_once(tmp_path: Path) -> None:
    """Without a handler pid 1 of a container would not hear the signal at all, and be killed after its whole grace."""
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        engine = subprocess.Popen(
            [*COMMAND, "engine", "smollm2", "--frontends", f"ipc://{tmp_path}/mesh"],
            stdin=subprocess.DEVNULL,
            stderr=stderr,
        )
    deadline = time.monotonic() + LONGEST_S
    while "starting" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)
    engine.send_signal(signal.SIGTERM)
    assert engine.wait(LONGEST_S) == 0, log.read_text()
    assert "is ready" not in log.read_text()
