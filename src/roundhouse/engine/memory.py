"""How much memory an engine takes for KV blocks when nobody said. Pure; the shell reads the machine."""

from __future__ import annotations

CPU_SHARE = 0.25
CUDA_SHARE = 0.9
CPU_LARGEST_BYTES = 4 * 2**30


def kv_budget_bytes(*, available_bytes: int, on_cuda: bool, engines_on_machine: int = 1) -> int:
    """On CUDA most of what the model left; on CPU a modest part, since others live there too. Blocks that are never
    used cost nothing on CPU.
    """
    if on_cuda:
        return int(available_bytes * CUDA_SHARE)
    return min(int(available_bytes * CPU_SHARE) // engines_on_machine, CPU_LARGEST_BYTES)
