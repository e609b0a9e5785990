"""`EngineProcesses`: the local engines of `roundhouse serve`, started by exec, restarted by `RestartPolicy`.

Each engine leads a session of its own, so that Ctrl-C reaches this process alone and engines leave in order; the
kernel kills each when this process is gone (`lifeline`): none is orphaned.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence

from roundhouse.cli.restart import GiveUp, RestartPolicy
from roundhouse.clock import Clock, monotonic
from roundhouse.protocol.errors import RoundhouseError

logger = logging.getLogger(__name__)

KILL_AFTER_S = 5.0


class EnginesFailed(RoundhouseError):
    """No engine ever came up. has_said_why: on stderr, before it left by itself."""

    code = "engines_failed"

    def __init__(self, message: str, exit_code: int, *, has_said_why: bool) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.has_said_why = has_said_why


class EngineProcesses:
    """Keeps `count` engines alive until `stop`. `is_serving` tells whether an engine was ever admitted."""

    def __init__(
        self, arguments: Sequence[str], count: int, *, is_serving: Callable[[], bool], clock: Clock = monotonic
    ) -> None:
        self._arguments = arguments
        self._count = count
        self._is_serving = is_serving
        self._clock = clock
        self._processes: dict[int, Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Starts them and keeps them. Returns after `stop`; raises `EnginesFailed` when they cannot come up."""
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(self._count):
                    group.create_task(self._keep(index), name=f"engine-{index}")
        except* EnginesFailed as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._end_all()

    def stop(self) -> None:
        """Asks every engine to leave; `run` returns when they have."""
        self._stopping.set()
        for process in self._processes.values():
            _send(process, signal.SIGTERM)

    async def _keep(self, index: int) -> None:
        policy = RestartPolicy()
        while not self._stopping.is_set():
            started = self._clock()
            exit_code = await self._run_one(index)
            if self._stopping.is_set():
                return
            match policy.on_exit(exit_code, self._clock() - started, was_serving=self._is_serving()):
                case GiveUp(code):
                    message = f"engine {index} ended before it was ready ({_cause(exit_code)})"
                    raise EnginesFailed(message, code, has_said_why=exit_code > 0)
                case again:
                    when = f"in {again.after_s:g} s" if again.after_s else "now"
                    logger.warning("engine %d ended (%s) and is started again %s", index, _cause(exit_code), when)
                    await self._pause(again.after_s)

    async def _run_one(self, index: int) -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # -P: what lies in the current folder is no module of ours.
            *("-P", "-m", "roundhouse.cli.main", "engine", *self._arguments),
            *("--identity", f"local-{index}", "--parent-pid", str(os.getpid())),
            stdin=DEVNULL,
            start_new_session=True,
        )
        self._processes[index] = process
        logger.info("engine %d starts (pid %d)", index, process.pid)
        try:
            return await process.wait()
        finally:
            if process.returncode is not None:
                del self._processes[index]

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            pass

    async def _end_all(self) -> None:
        """Leaves no process behind, whatever ended `run`."""
        left = list(self._processes.values())
        for process in left:
            _send(process, signal.SIGTERM)
        for process in left:
            try:
                await asyncio.wait_for(process.wait(), KILL_AFTER_S)
            except TimeoutError:
                _send(process, signal.SIGKILL)
                await process.wait()


def _send(process: Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        pass


def _cause(exit_code: int) -> str:
    return f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit code {exit_code}"
