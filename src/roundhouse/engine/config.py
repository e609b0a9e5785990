"""`EngineConfig`: what an engine is told, besides whom it serves. A component gets its part only."""

from __future__ import annotations

from dataclasses import dataclass

from roundhouse.runner.config import RunnerConfig
from roundhouse.scheduler.config import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """num_blocks: KV blocks, the null block included; None takes what `kv_cache_bytes` holds, and None for that too
    takes a part of the free memory, shared by the `engines_on_machine`.
    """

    runner: RunnerConfig
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    engines_on_machine: int = 1
    enable_prefix_caching: bool = True
    policy: Policy = "fcfs"
