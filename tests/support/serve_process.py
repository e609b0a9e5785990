"""`roundhouse serve` as a real process, for integration tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

READY_TIMEOUT_S = 90.0
COMMAND = (sys.executable, "-m", "roundhouse.cli.main")


class ServeProcess:
    """Started with `serve MODEL --port 0 …`; the port is read from the log. Ends with the block, engines included."""

    def __init__(self, log: Path, model: str, arguments: Sequence[str] = (), *, host: str = "127.0.0.1") -> None:
        self.log = log
        self._host = host
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", model, "--port", "0", "--host", host, *arguments],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self.wait_for_line("ready in")
            self.url = self.lines("ready in")[0].split(" at ")[1].removesuffix("/v1")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def lines(self, text: str) -> list[str]:
        """The log's lines that hold `text`."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if text in line]

    def wait_for_line(self, text: str, *, count: int = 1, timeout_s: float = READY_TIMEOUT_S) -> None:
        self.wait_until(lambda: len(self.lines(text)) >= count, f"{text!r} × {count} in the log", timeout_s=timeout_s)

    def wait_until(self, condition: object, what: str, *, timeout_s: float) -> None:
        assert callable(condition)
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {what}; exit code {self.process.poll()}; log:\n{self.log.read_text()}")
            time.sleep(0.02)

    def wait_for_health(self, status: int, *, timeout_s: float) -> None:
        self.wait_until(
            lambda: httpx.get(f"{self.url}/health").status_code == status, f"/health {status}", timeout_s=timeout_s
        )

    def engine_pids(self) -> list[int]:
        """Of the engines that run now, in the order of their identities."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        commands = {child.pid: child.cmdline() for child in children}
        return sorted(
            (pid for pid, command in commands.items() if "engine" in command), key=lambda pid: commands[pid][-3:]
        )

    def metric(self, name: str) -> float:
        """The sum of the series called `name`."""
        text = httpx.get(f"{self.url}/metrics").text
        values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.split("{")[0] == name]
        assert values, f"no metric {name}"
        return sum(values)

    def kill(self) -> None:
        """Ends it and its engines at once."""
        pids = self.engine_pids() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def run_command(*arguments: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    """`roundhouse …` to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
