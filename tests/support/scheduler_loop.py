"""`SchedulerLoop`: an engine core cut down to schedule, execute, update, which checks the state after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs
from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.scheduler import Scheduler
from roundhouse.scheduler.step import SchedulerOutput
from tests.support.scripted_runner import ScriptedRunner


@dataclass
class Stream:
    """All that one client heard of one of its requests."""

    token_ids: list[int] = field(default_factory=list)
    outputs: list[EngineCoreOutput] = field(default_factory=list)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[-1].finish_reason if self.outputs else None

    def hear(self, output: EngineCoreOutput) -> None:
        assert self.finish_reason is None, f"{output.request_id} goes on after its end"
        if self.outputs:
            assert output.first_token_index == self.outputs[-1].first_token_index + len(self.outputs[-1].new_token_ids)
        self.token_ids += output.new_token_ids
        self.outputs.append(output)


class SchedulerLoop:
    """Steps `scheduler` with `runner` at the times 1, 2, 3 …, and keeps every stream by (client index, request id)."""

    def __init__(self, scheduler: Scheduler, runner: ScriptedRunner | None = None) -> None:
        self.scheduler = scheduler
        self.runner = runner or ScriptedRunner(block_size=scheduler.kv_cache.block_size)
        self.plans: list[SchedulerOutput] = []
        self.streams: dict[tuple[int, str], Stream] = {}

    def stream(self, request_id: str, client_index: int = 0) -> Stream:
        return self.streams.setdefault((client_index, request_id), Stream())

    def step(self, *, during: Callable[[], object] = lambda: None) -> SchedulerOutput:
        """One step; `during` runs between the model and the update."""
        now = float(len(self.plans) + 1)
        plan = self.scheduler.schedule(now)
        self.scheduler.validate_state()
        assert plan.total_num_scheduled_tokens <= self.scheduler.config.max_num_batched_tokens
        assert len(plan.num_scheduled_tokens) <= self.scheduler.config.max_num_seqs
        result = self.runner.execute_model(plan)
        during()
        self.hear(self.scheduler.update(plan, result, now))
        self.scheduler.validate_state()
        self.plans.append(plan)
        return plan

    def hear(self, messages: Mapping[ClientIndex, EngineCoreOutputs]) -> None:
        for client_index, message in messages.items():
            assert message.outputs, "a message that tells nothing"
            for output in message.outputs:
                self.stream(output.request_id, client_index).hear(output)

    def run(self, *, max_steps: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests():
                break
            self.step()
        assert not self.scheduler.has_requests(), f"requests are left after {max_steps} steps"
        assert self.runner.rows == {}, "the runner still has rows"
