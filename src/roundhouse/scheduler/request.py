"""`Request` and the machine of its status.

    WAITING ──Schedule──► RUNNING ──Stop──► FINISHED_STOPPED
                          │  ▲  └──ReachLength──► FINISHED_LENGTH
                     Preempt  Schedule
                          ▼  │
                        PREEMPTED            any live one: Abort ──► FINISHED_ABORTED, Fail ──► FINISHED_ERROR

A request is live until it is finished, and finished once. There is no prefill and no decode: `num_computed_tokens`
chases `num_tokens`. A request that comes with outputs of an earlier attempt is one that was preempted there: its
outputs are outputs here too, and what one of them already ended (Stop, ReachLength) never runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import isfinite

from roundhouse.protocol.block_hash import BlockHash, root_hash
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.machine import Machine
from roundhouse.protocol.messages import EngineCoreEvent, EngineCoreRequest
from roundhouse.protocol.sampling import FinishReason, SamplingParams

_SEED_MASK = 2**64 - 1


class RequestStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "finished_stopped"
    FINISHED_LENGTH = "finished_length"
    FINISHED_ABORTED = "finished_aborted"
    FINISHED_ERROR = "finished_error"


class Schedule:
    """It got blocks and tokens of a step."""


class Preempt:
    """It gave its blocks up and waits to compute its tokens again."""


class Stop:
    """Its last token ends it."""


class ReachLength:
    """It may not or cannot grow any more."""


class Abort:
    """Nobody wants it any more."""


class Fail:
    """It cannot go on, and its client is told why."""


_LIVE = (RequestStatus.WAITING, RequestStatus.RUNNING, RequestStatus.PREEMPTED)

TABLE: dict[tuple[RequestStatus, type], RequestStatus] = {
    (RequestStatus.WAITING, Schedule): RequestStatus.RUNNING,
    (RequestStatus.PREEMPTED, Schedule): RequestStatus.RUNNING,
    (RequestStatus.RUNNING, Preempt): RequestStatus.PREEMPTED,
    (RequestStatus.RUNNING, Stop): RequestStatus.FINISHED_STOPPED,
    (RequestStatus.RUNNING, ReachLength): RequestStatus.FINISHED_LENGTH,
    (RequestStatus.WAITING, Stop): RequestStatus.FINISHED_STOPPED,
    (RequestStatus.WAITING, ReachLength): RequestStatus.FINISHED_LENGTH,
    **{(status, Abort): RequestStatus.FINISHED_ABORTED for status in _LIVE},
    **{(status, Fail): RequestStatus.FINISHED_ERROR for status in _LIVE},
}

FINISH_REASONS: dict[RequestStatus, FinishReason] = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}

FINISHED: frozenset[RequestStatus] = frozenset(FINISH_REASONS)

ENDINGS: dict[FinishReason, type] = {
    FinishReason.STOP: Stop,
    FinishReason.LENGTH: ReachLength,
    FinishReason.ABORT: Abort,
    FinishReason.ERROR: Fail,
}
"""The event that ends a request with that reason."""


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One request in the engine, changed by the scheduler alone.

    request_id: unique in the engine, over all clients. external_request_id: the client's own, which outputs carry.
    token_ids: prompt, then outputs. seed: Philox key, 0 … 2^64 - 1. stop_token_ids: all that end it, its EOS included
    unless ignored. block_hashes: chain of its full blocks as far as anyone needed it.
    arrival_index: its place in the order in which the scheduler got its requests.
    num_cached_tokens: prompt tokens that its first admission found in the cache, None before that.
    events: since its last output. has_reported: an output of it was made.
    """

    request_id: str
    external_request_id: str
    client_index: ClientIndex
    attempt: int
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    child_index: int
    eos_token_id: int | None
    stop_token_ids: frozenset[int]
    root_hash: BlockHash
    priority: int
    arrival_time: float
    machine: Machine[RequestStatus]

    arrival_index: int = 0
    block_hashes: list[BlockHash] = field(default_factory=list[BlockHash])
    num_computed_tokens: int = 0
    num_cached_tokens: int | None = None
    num_preemptions: int = 0
    events: list[EngineCoreEvent] = field(default_factory=list[EngineCoreEvent])
    has_reported: bool = False

    @classmethod
    def from_engine_core_request(cls, request: EngineCoreRequest, client_index: ClientIndex, seed: int) -> Request:
        """A waiting request. `seed` may be negative: its 64 bits count. Raises `InvalidRequest` for what cannot run."""
        params = request.sampling_params
        if params is None:
            raise InvalidRequest("this engine generates and does not encode: sampling_params are needed")
        if not request.prompt_token_ids:
            raise InvalidRequest("the prompt may not be empty", param="prompt")
        if not isfinite(request.arrival_time):
            raise InvalidRequest("arrival_time must be a finite number", param="arrival_time")
        stop_token_ids = set(params.stop_token_ids)
        if request.eos_token_id is not None and not params.ignore_eos:
            stop_token_ids.add(request.eos_token_id)
        request_id = engine_request_id(request.request_id, client_index)
        return cls(
            request_id=request_id,
            external_request_id=request.request_id,
            client_index=client_index,
            attempt=request.attempt,
            token_ids=request.prompt_token_ids + request.output_token_ids,
            num_prompt_tokens=len(request.prompt_token_ids),
            sampling_params=params,
            seed=seed & _SEED_MASK,
            child_index=request.child_index,
            eos_token_id=request.eos_token_id,
            stop_token_ids=frozenset(stop_token_ids),
            root_hash=root_hash(cache_salt=request.cache_salt, lora_name=request.lora_name),
            priority=request.priority,
            arrival_time=request.arrival_time,
            machine=Machine(request_id, TABLE, RequestStatus.WAITING),
        )

    @property
    def status(self) -> RequestStatus:
        return self.machine.state

    @property
    def is_finished(self) -> bool:
        return self.machine.state in FINISHED

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy."""
        return self.token_ids[self.num_prompt_tokens :]


def engine_request_id(external_request_id: str, client_index: ClientIndex) -> str:
    """A client's request id as the engine knows it: two clients may use the same id and never meet."""
    return f"{client_index}:{external_request_id}"
