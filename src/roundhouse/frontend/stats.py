"""What is counted about requests, and who is told. Pure: `now` comes in.

Times that a user feels (first token, between tokens, whole) are on the frontend's clock. Times inside an engine (queue,
prefill, decode) are differences on that engine's clock, and missing when the request saw two: clocks do not compare.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from roundhouse.protocol.messages import EngineCoreEvent, EngineCoreOutput, EventType, SchedulerStats
from roundhouse.protocol.sampling import FinishReason

EngineLife = tuple[int, tuple[int, int]]
"""(engine index, epoch): one start of one engine, which is also one clock and one set of totals."""


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One choice that ended. Times in seconds, None for what did not happen."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_generation_tokens: int
    e2e_s: float
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None


@dataclass(slots=True)
class IterationStats:
    """What one message from an engine, or one abort, brought."""

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_late_outputs: int = 0
    time_to_first_token_s: list[float] = field(default_factory=list)
    inter_token_s: list[float] = field(default_factory=list)
    finished: list[FinishedRequest] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineSample:
    """A scheduler's stats as they came with a message."""

    engine: EngineLife
    stats: SchedulerStats


class StatLogger(Protocol):
    """Called on the event loop after every message and abort: it may not block and must not raise."""

    def record(self, iteration: IterationStats, engine: EngineSample | None) -> None: ...


@dataclass(slots=True)
class RequestStats:
    """The times of one choice, from its arrival to its end."""

    arrival_s: float
    num_prompt_tokens: int
    num_generation_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float = 0.0
    engine: EngineLife | None = None
    is_one_engine: bool = True
    queued_ts: float | None = None
    scheduled_ts: float | None = None
    first_token_ts: float | None = None
    last_token_ts: float | None = None

    def on_output(
        self, output: EngineCoreOutput, engine: EngineLife, timestamp: float, now: float, iteration: IterationStats
    ) -> None:
        """`timestamp` is on the clock of `engine`, `now` on ours."""
        if self.engine is None:
            self.engine = engine
        elif self.engine != engine:
            self.is_one_engine = False
        for event in output.events:
            self._on_event(event)
        num_new_tokens = len(output.new_token_ids)
        if not num_new_tokens:
            return
        if self.first_token_s is None:
            self.first_token_s, self.first_token_ts = now, timestamp
            iteration.num_prompt_tokens += self.num_prompt_tokens
            iteration.time_to_first_token_s.append(now - self.arrival_s)
        else:
            iteration.inter_token_s.append(now - self.last_token_s)
        self.last_token_s, self.last_token_ts = now, timestamp
        self.num_generation_tokens += num_new_tokens
        iteration.num_generation_tokens += num_new_tokens

    def finish(self, reason: FinishReason, now: float) -> FinishedRequest:
        return FinishedRequest(
            finish_reason=reason,
            num_prompt_tokens=self.num_prompt_tokens,
            num_generation_tokens=self.num_generation_tokens,
            e2e_s=now - self.arrival_s,
            queue_s=self._between(self.queued_ts, self.scheduled_ts),
            prefill_s=self._between(self.scheduled_ts, self.first_token_ts),
            decode_s=self._between(self.first_token_ts, self.last_token_ts),
        )

    def _on_event(self, event: EngineCoreEvent) -> None:
        """The first of each kind counts: a preempted request is scheduled again."""
        if event.type is EventType.QUEUED and self.queued_ts is None:
            self.queued_ts = event.timestamp
        elif event.type is EventType.SCHEDULED and self.scheduled_ts is None:
            self.scheduled_ts = event.timestamp

    def _between(self, start: float | None, end: float | None) -> float | None:
        if not self.is_one_engine or start is None or end is None:
            return None
        return end - start
