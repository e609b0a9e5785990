"""How many KV blocks an engine takes. Pure; the shell reads the machine."""

from __future__ import annotations

from roundhouse.protocol.errors import ConfigError

CPU_SHARE = 0.25
CUDA_SHARE = 0.9
CPU_LARGEST_BYTES = 4 * 2**30


def kv_budget_bytes(*, available_bytes: int, on_cuda: bool, engines_on_machine: int = 1) -> int:
    """Memory for KV blocks when nothing was said: on CUDA most of what the model left, on CPU a modest part, since
    others live there too and blocks that are never used cost nothing.
    """
    if on_cuda:
        return int(available_bytes * CUDA_SHARE)
    return min(int(available_bytes * CPU_SHARE) // engines_on_machine, CPU_LARGEST_BYTES)


def num_kv_blocks(*, budget_bytes: int, block_bytes: int, block_size: int, max_model_len: int, max_num_seqs: int) -> int:
    """Blocks that fit the budget, the null block included, and no more than `max_num_seqs` full contexts need.

    Raises `ConfigError` when not even one full context fits.
    """
    blocks_per_context = -(-max_model_len // block_size)
    blocks = min(budget_bytes // block_bytes, blocks_per_context * max_num_seqs + 1)
    if blocks < blocks_per_context + 1:
        raise ConfigError(
            f"{budget_bytes / 2**20:.0f} MiB hold {blocks} KV blocks; one context of {max_model_len} tokens needs "
            f"{blocks_per_context + 1}: raise --kv-cache-memory or lower --max-model-len"
        )
    return blocks
