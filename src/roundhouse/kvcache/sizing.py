"""How many blocks a budget holds. Pure arithmetic; the runner knows what a block costs and measures the budget."""

from __future__ import annotations

from roundhouse.protocol.errors import ConfigError


def num_blocks_for_budget(bytes_per_block: int, *, block_size: int, memory_bytes: int, max_model_len: int) -> int:
    """Blocks that `memory_bytes` hold, the null block included: `CacheConfig.num_blocks`.

    Raises `ConfigError` when they do not hold one sequence of `max_model_len` tokens, and says what would help.
    """
    num_blocks = memory_bytes // bytes_per_block
    num_needed = num_blocks_for_sequence(max_model_len, block_size)
    if num_blocks < num_needed:
        fitting = (num_blocks - 1) * block_size
        raise ConfigError(
            f"the KV cache has {_mib(memory_bytes)} and one sequence of {max_model_len} tokens needs "
            f"{_mib(num_needed * bytes_per_block)}: give it more memory"
            + (f" or lower max_model_len to {fitting} tokens at most" if fitting > 0 else "")
        )
    return num_blocks


def num_blocks_for_sequence(max_model_len: int, block_size: int) -> int:
    """The smallest pool, the null block included, in which a sequence of `max_model_len` tokens runs alone."""
    return 1 + -(-max_model_len // block_size)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
