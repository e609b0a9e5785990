"""Frontends and engines as separate processes; a test may kill, stop, end and start again each of them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

from tests.support.engine_nursery import EngineNursery
from tests.support.free_ports import free_port_run, free_tcp_port
from tests.support.serve_process import COMMAND

READY_TIMEOUT_S = 120.0


class FrontendProcess:
    """`roundhouse frontend`, at the same addresses each time it is started."""

    def __init__(self, name: str, folder: Path, model: str, mesh: str, arguments: Sequence[str] = ()) -> None:
        self.name = name
        self.mesh = mesh
        self.log = folder / f"{name}.log"
        self.url = f"http://127.0.0.1:{free_tcp_port()}"
        self.admin_url = f"http://127.0.0.1:{free_tcp_port()}"
        self._arguments = [
            *("frontend", model, "--mesh-bind", mesh, "--port", self.url.rpartition(":")[2]),
            *("--admin-port", self.admin_url.rpartition(":")[2], "--served-model-name", "m", *arguments),
        ]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [*COMMAND, *self._arguments],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )
        eventually(self.is_ready, f"{self.name} is ready", self.log)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.admin_url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """In order."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def engines(self) -> dict[str, dict[str, object]]:
        """By identity, as `/engines` shows them."""
        return {engine["identity"]: engine for engine in httpx.get(f"{self.admin_url}/engines").json()}

    def load(self) -> dict[str, float]:
        return httpx.get(f"{self.admin_url}/load").json()

    def drain(self, identity: str) -> int:
        """The status."""
        return httpx.post(f"{self.admin_url}/drain", json={"engine": identity}).status_code

    def metrics(self) -> dict[str, float]:
        """Series as they are spelled in the text format, without the model's name."""
        values: dict[str, float] = {}
        for line in httpx.get(f"{self.admin_url}/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name.replace('model_name="m"', "").replace(",}", "}").replace("{}", "")] = float(value)
        return values


class EngineProcess:
    """`roundhouse engine` with one identity over all its lives; `pid` is that of the current one."""

    def __init__(self, identity: str, nursery: EngineNursery, log: Path, arguments: Sequence[str]) -> None:
        self.identity = identity
        self.log = log
        self._nursery = nursery
        self._arguments = [*arguments, "--identity", identity, "--served-model-name", "m"]
        self.pid = 0

    def start(self) -> None:
        assert not self.is_alive
        self.pid = self._nursery.start(self._arguments, self.log)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    @property
    def is_alive(self) -> bool:
        if not self.pid:
            return False
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def wait(self, timeout_s: float = 60.0) -> None:
        """Until it has ended."""
        eventually(lambda: not self.is_alive, f"{self.identity} ends", self.log, timeout_s=timeout_s)


class Cluster:
    """`frontends` and `engines`, all started and admitted when the block begins.

    keys: what `roundhouse keys` made for the engines e-0, e-1, …; the mesh is closed then.
    """

    def __init__(
        self,
        folder: Path,
        model: str,
        *,
        num_frontends: int = 1,
        num_engines: int = 2,
        engine_arguments: Sequence[str] = (),
        frontend_arguments: Sequence[str] = (),
        tcp: bool = True,
        keys: Path | None = None,
        nursery: EngineNursery | None = None,
    ) -> None:
        self._stack = ExitStack()
        meshes = [self._address(folder, index, tcp) for index in range(num_frontends)]
        self.frontends = [
            FrontendProcess(
                f"frontend-{index}", folder, model, mesh, [*frontend_arguments, *_mesh_keys(keys, "frontends")]
            )
            for index, mesh in enumerate(meshes)
        ]
        self.nursery = nursery or EngineNursery()
        arguments = [model, "--frontends", ",".join(meshes), *engine_arguments]
        self.engines = [
            EngineProcess(
                f"e-{index}",
                self.nursery,
                folder / f"e-{index}.log",
                [*arguments, *_mesh_keys(keys, f"engines/e-{index}")],
            )
            for index in range(num_engines)
        ]

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.nursery)
            for frontend in self.frontends:
                stack.callback(frontend.stop)
                frontend.start()
            for engine in self.engines:
                engine.start()
            self.wait_for_engines()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    def engine(self, identity: str) -> EngineProcess:
        return next(engine for engine in self.engines if engine.identity == identity)

    def holder(self) -> EngineProcess:
        """The engine that has most of the first frontend's requests."""
        engines = self.frontends[0].engines()
        return self.engine(max(engines, key=lambda identity: engines[identity]["num_inflight"]))  # type: ignore[arg-type, return-value]

    def wait_for_engines(self) -> None:
        """Until every frontend that runs has admitted every engine that runs, in its present life."""
        for frontend in self.frontends:
            eventually(lambda: self._has_all(frontend), f"all engines at {frontend.name}", frontend.log)  # noqa: B023

    def _has_all(self, frontend: FrontendProcess) -> bool:
        alive = {engine.identity for engine in self.engines if engine.is_alive}
        return alive <= {name for name, engine in frontend.engines().items() if engine["state"] == "admitted"}

    @staticmethod
    def _address(folder: Path, index: int, tcp: bool) -> str:
        return f"tcp://127.0.0.1:{free_port_run('127.0.0.1', 4)}" if tcp else f"ipc://{folder}/mesh-{index}"


def _mesh_keys(keys: Path | None, part: str) -> list[str]:
    return [] if keys is None else ["--mesh-keys", str(keys / part)]


def eventually(condition: Callable[[], bool], what: str, log: Path, *, timeout_s: float = READY_TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}; log:\n{log.read_text()}"
        time.sleep(0.02)
