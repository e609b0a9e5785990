"""`CacheConfig`: the shape of the block pool."""

from __future__ import annotations

from dataclasses import dataclass

from roundhouse.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """num_blocks counts the reserved null block 0, so one fewer can be given out. Raises `ConfigError`."""

    num_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size must be at least 1, got {self.block_size}")
        if self.num_blocks < 2:
            raise ConfigError(f"num_blocks must be at least 2 (block 0 is reserved), got {self.num_blocks}")
