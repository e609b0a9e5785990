"""`EngineConfig` in parts: each component gets its part only. Frozen values, checked where they are made."""

from __future__ import annotations

from dataclasses import dataclass, field

from roundhouse.kvcache.config import CacheConfig
from roundhouse.runner.config import RunnerConfig
from roundhouse.scheduler.config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """How the engine is known and whom it serves.

    identity: stable over restarts. granted_epoch: from whoever granted the identity, 0 without an operator.
    frontends: addresses as texts (`transport.address`). model: the name that the frontends must ask for.
    """

    identity: str
    model: str
    frontends: tuple[str, ...]
    granted_epoch: int = 0


@dataclass(frozen=True, slots=True)
class DrainConfig:
    """On SIGTERM running requests get `grace_s` seconds to end; 0 ends them at once with the finish reason abort."""

    grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All of it. `kv_cache_bytes`: memory for KV blocks when `cache.num_blocks` is None."""

    runner: RunnerConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    mesh: MeshConfig
    drain: DrainConfig = field(default_factory=DrainConfig)
    kv_cache_bytes: int | None = None
