"""Values with defaults, so that a test names only what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roundhouse.kvcache.config import CacheConfig
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import EngineCoreRequest
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.scheduler.config import SchedulerConfig
from roundhouse.scheduler.request import Request
from roundhouse.scheduler.scheduler import Scheduler

EOS = 0
CLIENT = ClientIndex(0)


def engine_core_request(
    request_id: str = "a",
    prompt: Sequence[int] | int = 8,
    *,
    outputs: Sequence[int] = (),
    arrival_time: float = 0.0,
    priority: int = 0,
    attempt: int = 0,
    child_index: int = 0,
    cache_salt: str | None = None,
    eos_token_id: int | None = EOS,
    **params: Any,
) -> EngineCoreRequest:
    """`prompt`: token ids, or how many (1, 2, 3 …). `params` go to `SamplingParams`, greedy and seeded by default."""
    prompt_token_ids = list(range(1, prompt + 1)) if isinstance(prompt, int) else list(prompt)
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=prompt_token_ids,
        sampling_params=SamplingParams(**{"temperature": 0.0, "seed": 0, **params}),
        arrival_time=arrival_time,
        eos_token_id=eos_token_id,
        priority=priority,
        attempt=attempt,
        output_token_ids=list(outputs),
        child_index=child_index,
        cache_salt=cache_salt,
    )


def request(
    request_id: str = "a",
    prompt: Sequence[int] | int = 8,
    *,
    client_index: ClientIndex = CLIENT,
    seed: int = 0,
    **fields: Any,
) -> Request:
    """The scheduler's request made from `engine_core_request(request_id, prompt, **fields)`."""
    return Request.from_engine_core_request(engine_core_request(request_id, prompt, **fields), client_index, seed)


def scheduler(
    *, num_blocks: int = 64, block_size: int = 4, enable_prefix_caching: bool = True, **config: Any
) -> Scheduler:
    """`num_blocks` counts the null block. `config` goes to `SchedulerConfig`."""
    return Scheduler(
        SchedulerConfig(**{"max_model_len": 256, **config}),
        CacheConfig(num_blocks=num_blocks, block_size=block_size, enable_prefix_caching=enable_prefix_caching),
    )
