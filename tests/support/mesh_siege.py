"""A frontend with streams, an engine, and attackers, each a process of its own; what an attack did to the frontend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from roundhouse.cli.key_store import KeyStore
from tests.support.attacked_frontend import Report
from tests.support.free_ports import free_port_run

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests/support"


@dataclass(frozen=True)
class Attack:
    """before and after: reports at its begin and its end. result: what the attacker says. growth: bytes of the
    frontend's memory at the highest, over what it had before. num_log_lines: of the frontend meanwhile."""

    before: Report
    after: Report
    result: dict[str, Any]
    growth: int

    @property
    def num_log_lines(self) -> int:
        return self.after.num_log_lines - self.before.num_log_lines

    def added(self, counts: str, name: str) -> int:
        return getattr(self.after, counts)[name] - getattr(self.before, counts)[name]


class Siege:
    """`engine-0` serves; the key of `engine-1` is the attackers'. descriptors: the frontend's soft limit of them."""

    def __init__(self, folder: Path, *, num_streams: int = 16, delay_s: float = 0.03, descriptors: int | None = None):
        store = KeyStore(folder / "keys")
        store.create(["engine-0", "engine-1"])
        self._store = store
        self._stolen = store.engine("engine-1")
        self._address = f"tcp://127.0.0.1:{free_port_run('127.0.0.1', 4)}"
        self._log = (folder / "log").open("ab")
        self._environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        config = {"address": self._address, "keys": str(store.frontends), "streams": num_streams}
        self._frontend = self._start("attacked_frontend.py", json.dumps({**config, "descriptors": descriptors}))
        engine = {"frontends": [self._address], "identity": "engine-0", "keys": str(store.engine("engine-0"))}
        self._engine = self._start("mesh_engine.py", json.dumps({**engine, "delay_s": delay_s}))
        assert self._line() == "ready"

    def report(self) -> Report:
        return msgspec.json.decode(self._ask("report"), type=Report)

    def wait_for_tokens(self, seconds: float = 30.0) -> None:
        """Until each stream has had a token, from now on."""
        self.report()
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(0.2)
            # A report begins the count anew: a stream that stands still has none in any of them.
            if self.report().fewest_tokens:
                return
        raise AssertionError("a stream stands still")

    def kill_zap(self) -> None:
        """The handler of the keys dies at the next connection, and stays dead until `wake_zap`."""
        self._ask("kill zap")

    def wake_zap(self) -> None:
        self._ask("wake zap")

    def revoke_the_stolen(self, in_s: float) -> None:
        """Later on, in the middle of an attack."""
        threading.Timer(in_s, self._store.revoke, ("engine-1",)).start()

    def quiet(self, seconds: float) -> Attack:
        before, memory = self.report(), _Memory(self._frontend.pid)
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            memory.look()
            time.sleep(0.02)
        return Attack(before, self.report(), {}, memory.growth)

    def attack(self, name: str) -> Attack:
        before, memory = self.report(), _Memory(self._frontend.pid)
        config = {
            "address": self._address,
            "engine": str(self._stolen),
            "session": before.session_ids["engine-0"],
            "routing_id": before.routing_ids["engine-0"],
        }
        attacker = self._start("mesh_attacker.py", name, json.dumps(config))
        try:
            ends_at = time.monotonic() + 60
            while attacker.poll() is None and time.monotonic() < ends_at:
                memory.look()
                time.sleep(0.02)
        finally:
            attacker.kill()
        assert attacker.stdout is not None
        line = attacker.stdout.readline()
        attacker.stdout.close()
        assert attacker.wait() == 0, name
        return Attack(before, self.report(), json.loads(line), memory.growth)

    def end(self) -> None:
        for process in (self._engine, self._frontend):
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self._log.close()

    def _start(self, script: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(SUPPORT / script), *arguments],
            stdin=subprocess.PIPE if script == "attacked_frontend.py" else None,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
        )

    def _ask(self, line: str) -> str:
        assert self._frontend.stdin is not None
        self._frontend.stdin.write(line.encode() + b"\n")
        self._frontend.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._frontend.stdout is not None
        return self._frontend.stdout.readline().decode().strip()


class _Memory:
    def __init__(self, pid: int) -> None:
        self._statm = Path(f"/proc/{pid}/statm")
        self._first = self._most = self._now()

    @property
    def growth(self) -> int:
        return self._most - self._first

    def look(self) -> None:
        self._most = max(self._most, self._now())

    def _now(self) -> int:
        return int(self._statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
