"""`EngineConfig`: what an engine is told, besides whom it serves. A component gets its part only."""

from __future__ import annotations

from dataclasses import dataclass

from roundhouse.protocol.errors import ConfigError
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

    def __post_init__(self) -> None:
        for name, least in (("num_blocks", 2), ("kv_cache_bytes", 1), ("engines_on_machine", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")


_BATCHED_TOKENS = {"cpu": 512, "cuda": 8192}


def default_batched_tokens(device_type: str) -> int:
    """Tokens in one step. It lasts as long as they take, and every stream waits for it: on 2 cores 512 are a fifth of a
    second, and more of them go no faster; a GPU needs thousands to be busy.
    """
    return _BATCHED_TOKENS[device_type]
