"""An engine core over the scripted runner, and an `EngineProc` without threads around it."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from roundhouse.engine.core import EngineCore
from roundhouse.engine.executor import Executor
from roundhouse.engine.inbox import Inbox
from roundhouse.engine.proc import EngineProc
from roundhouse.scheduler.step import ModelRunnerOutput, SchedulerOutput
from roundhouse.transport.items import Backlog, BusyLoopStatus, OutputItem
from tests.support.builders import scheduler
from tests.support.scripted_runner import ScriptedRunner

VOCAB_SIZE = 50


class ScriptedExecutor(Executor):
    """`during_step` is called while a step "computes": what arrives meanwhile arrives there."""

    def __init__(self, **script: Any) -> None:
        self.runner = ScriptedRunner(vocab_size=VOCAB_SIZE, **script)
        self.during_step: Callable[[], None] = lambda: None

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        result = self.runner.execute_model(plan)
        self.during_step()
        return result


def engine_core(executor: ScriptedExecutor | None = None, **config: Any) -> EngineCore:
    return EngineCore(scheduler(**config), executor or ScriptedExecutor(), vocab_size=VOCAB_SIZE, clock=lambda: 100.0)


class Proc:
    """An `EngineProc` with its queues in reach; `now` is its clock."""

    def __init__(self, *, drain_grace_s: float = 10.0, **config: Any) -> None:
        self.now = 0.0
        self.executor = ScriptedExecutor()
        self.inbox = Inbox(Backlog())
        self.output_queue: SimpleQueue[OutputItem] = SimpleQueue()
        self.proc = EngineProc(
            engine_core(self.executor, **config),
            self.inbox,
            self.output_queue,
            BusyLoopStatus(),
            drain_grace_s=drain_grace_s,
            clock=lambda: self.now,
        )

    def sent(self) -> list[OutputItem]:
        """What was put into the output queue since the last call."""
        return [self.output_queue.get_nowait() for _ in range(self.output_queue.qsize())]
