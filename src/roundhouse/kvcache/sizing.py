"""How many bytes a block takes and how many blocks a budget holds. Pure arithmetic; the runner measures the budget."""

from __future__ import annotations

from dataclasses import dataclass

from roundhouse.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheShape:
    """What one token leaves in the cache, on one device: tensor parallel ranks count their own share of the heads."""

    num_layers: int
    num_kv_heads: int
    head_size: int
    dtype_bytes: int

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * self.dtype_bytes


def bytes_per_block(shape: KVCacheShape, block_size: int) -> int:
    """Of all layers together."""
    return shape.bytes_per_token * block_size


def num_blocks_for_budget(shape: KVCacheShape, *, block_size: int, memory_bytes: int, max_model_len: int) -> int:
    """Blocks that `memory_bytes` hold, the null block included: `CacheConfig.num_blocks`.

    Raises `ConfigError` when they do not hold one sequence of `max_model_len` tokens, and says what would help.
    """
    block_bytes = bytes_per_block(shape, block_size)
    num_blocks = memory_bytes // block_bytes
    num_needed = num_blocks_for_sequence(max_model_len, block_size)
    if num_blocks < num_needed:
        fitting = (num_blocks - 1) * block_size
        raise ConfigError(
            f"the KV cache has {_mib(memory_bytes)} and one sequence of {max_model_len} tokens needs "
            f"{_mib(num_needed * block_bytes)}: give it more memory"
            + (f" or lower max_model_len to {fitting} tokens at most" if fitting > 0 else "")
        )
    return num_blocks


def num_blocks_for_sequence(max_model_len: int, block_size: int) -> int:
    """The smallest pool, the null block included, in which a sequence of `max_model_len` tokens runs alone."""
    return 1 + -(-max_model_len // block_size)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
