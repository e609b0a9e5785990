"""Starts engines from a process that has imported torch and transformers already: in a tenth of the time and the work.

Only for tests that start dozens of them. Each is a process of its own that runs `roundhouse engine` as the command
does, and can be killed, stopped and told to leave like any other. Nothing has started a thread before the fork.

The process itself reads one JSON object a line, {"arguments": [...], "log": path}, and answers with the engine's pid.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self


class EngineNursery:
    """Ends every engine when it ends: they die with it. module: what is run; another one may change engines first."""

    def __init__(self, module: str = "tests.support.engine_nursery") -> None:
        self._module = module

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.communicate("", timeout=30)

    def start(self, arguments: Sequence[str], log: Path) -> int:
        """The pid of a new `roundhouse engine …`, whose standard error is added to `log`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        arguments = [*arguments, "--parent-pid", str(self._process.pid)]
        self._process.stdin.write(json.dumps({"arguments": arguments, "log": str(log)}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _run_engine(arguments: list[str], log: str) -> None:
    from roundhouse.cli.main import cli

    with open(log, "ab") as stderr:
        os.dup2(stderr.fileno(), 2)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    cli(["engine", *arguments], prog_name="roundhouse")


def main() -> None:
    """Until its standard input ends."""
    import transformers  # noqa: F401

    import roundhouse.cli.engine  # noqa: F401

    # The kernel forgets what has ended: nobody here waits for it.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            exit_code = 1
            try:
                _run_engine(order["arguments"], order["log"])
            except SystemExit as end:
                exit_code = end.code if isinstance(end.code, int) else 1
            except BaseException as error:
                sys.stderr.write(f"the engine could not start: {error!r}\n")
            finally:
                os._exit(exit_code)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
