"""Every struct that crosses a process. Positional on the wire: a field is only ever appended, with a default, and never
retyped; `tests/golden/wire` holds the bytes of each version.

Times: `arrival_time` is the frontend's wall clock; every other time is the engine's monotonic clock, of which only
differences within one engine mean anything.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from roundhouse.protocol.sampling import FinishReason, SamplingParams

PROTOCOL_VERSIONS: list[int] = [1]
"""Versions that this build speaks, newest first."""


class PoolingParams(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """What to make of a prompt that is encoded and not continued. No engine of this version serves it yet."""

    task: str = "embed"


class EngineCoreRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """ADD. One request for one choice, checked by the frontend and checked again by the engine.

    output_token_ids: tokens that an earlier attempt delivered; they resume as outputs, never as prompt.
    attempt: rises by one with each engine that the request is given to.
    child_index: which of the n choices this is; it is part of the sampling counter.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams | None
    arrival_time: float
    eos_token_id: int | None = None
    priority: int = 0
    attempt: int = 0
    output_token_ids: list[int] = []
    child_index: int = 0
    cache_salt: str | None = None
    pooling_params: PoolingParams | None = None
    lora_name: str | None = None
    data_parallel_rank: int | None = None
    current_wave: int = 0
    trace_headers: dict[str, str] | None = None


class AbortRequests(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """ABORT. Unknown and ended ids are ignored."""

    request_ids: list[str]


class StartDPWave(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """START_DP_WAVE, of a lock-step data-parallel group."""

    wave: int
    exclude_engine_index: int | None = None


class UtilityRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """UTILITY. `method` is one of the engine's closed list; `args` are plain msgpack values."""

    call_id: int
    method: str
    args: list[Any] = []


class Ping(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """PING. `last_control_number` counts the frontend's frames of this session other than PING, from 1 up."""

    frontend_instance: str
    last_control_number: int
    ping_number: int = 0


class Admitted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """ADMITTED. The session is open; `session_id` stands in everything that the engine sends from here on."""

    frontend_instance: str
    session_id: int
    engine_index: int
    protocol_version: int
    max_message_bytes: int
    frontends: list[str] = []


class Refused(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """REFUSED. The engine logs `message` and tries again after its back-off."""

    reason: str
    message: str


class LogprobsLists(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Logprobs of new tokens, a row each: the sampled token first, then the k likeliest in order.

    `ranks[i]` is the sampled token's rank in the row's whole distribution, 1 the likeliest.
    """

    token_ids: list[list[int]]
    logprobs: list[list[float]]
    ranks: list[int]


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Logprobs of prompt tokens 1 … n - 1 (nothing comes before token 0), rows as in `LogprobsLists`.

    token_ids int32 [n - 1, k + 1], logprobs float32 [n - 1, k + 1], ranks int32 [n - 1].
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    ranks: np.ndarray


class EventType(IntEnum):
    QUEUED = 0
    SCHEDULED = 1
    PREEMPTED = 2


class EngineCoreEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    type: EventType
    timestamp: float


class OutputError(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a request ended with `FinishReason.ERROR`: a wire code of `protocol.errors` and a sentence."""

    code: str
    message: str
    param: str | None = None


class EngineCoreOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step brought for one request.

    first_token_index: the place of `new_token_ids[0]` among the request's outputs; with (request_id, attempt) it tells
    a late or doubled output from a new one.
    events: since the last output. num_cached_tokens: of the prompt at its first admission; on the first output only.
    """

    request_id: str
    attempt: int
    first_token_index: int
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    new_logprobs: LogprobsLists | None = None
    prompt_logprobs: PromptLogprobs | None = None
    events: list[EngineCoreEvent] = []
    num_cached_tokens: int = 0
    error: OutputError | None = None
    pooling_output: np.ndarray | None = None
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class SchedulerStats(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The scheduler's state after a step. Totals count from the engine's start and never fall.

    kv_cache_usage: fraction of blocks held by requests, 0 … 1.
    """

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    num_steps_total: int = 0
    num_scheduled_tokens: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    num_preemptions_total: int = 0
    num_prompt_tokens_total: int = 0
    num_generation_tokens_total: int = 0


class UtilityOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    call_id: int
    result: Any = None
    failure_message: str | None = None


class EngineCoreOutputs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """All that one step brought for one frontend: one message, whatever the number of requests.

    The engine core leaves the first four at their defaults; the output thread stamps them as it encodes.
    sequence_number: from 1 up within a session. timestamp: monotonic, when the step's update was done.
    """

    session_id: int = 0
    engine_index: int = 0
    epoch: tuple[int, int] = (0, 0)
    sequence_number: int = 0
    outputs: list[EngineCoreOutput] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0
    utility_output: UtilityOutput | None = None
    wave_complete: int | None = None
    start_wave: int | None = None


class Hello(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """HELLO, sent on DEALER and on PUSH with one nonce; both must arrive before the frontend answers.

    epoch: (granted by the operator, process start in unix ms): the higher one fences the lower.
    resume_key: engines with the same one continue each other's streams.
    """

    identity: str
    epoch: tuple[int, int]
    nonce: bytes
    protocol_versions: list[int]
    model: str
    resume_key: str
    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_message_bytes: int
    dp_group: str | None = None
    dp_rank: int = 0
    dp_size: int = 1
    vocab_size: int = 0


class Draining(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """DRAINING. The engine takes no new request and leaves in at most `leaves_in_s` seconds."""

    session_id: int
    reason: str
    leaves_in_s: float


class Pong(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """PONG. Answers one Ping; numbers as in Ping and EngineCoreOutputs.

    step_s: how long the busy loop has been inside its current step, 0 when it is not in one.
    """

    session_id: int
    ping_number: int
    last_control_number: int
    last_output_number: int
    load: SchedulerStats
    step_s: float = 0.0


class Died(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Behind the marker ENGINE_CORE_DEAD: whose last words these are."""

    session_id: int
    message: str
