"""`Executor`: where the model runs. One worker in this process today; several over torch.distributed fit behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from roundhouse.runner.worker import Worker
from roundhouse.scheduler.step import ModelRunnerOutput, SchedulerOutput


class Executor(ABC):
    """Runs the plan of a step on every worker and returns the result of the first."""

    @abstractmethod
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Computes the scheduled tokens. What it raises is fatal for the engine."""


class UniProcExecutor(Executor):
    """One worker in the caller's process and thread."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        return self.worker.execute_model(plan)
