"""`EngineArgs`: what a caller may say about an engine in his own process. The names are vLLM's where it has one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roundhouse.engine.config import EngineConfig, default_batched_tokens
from roundhouse.protocol.errors import ConfigError
from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.worker import choose_device
from roundhouse.scheduler.config import Policy

_NUMBERS = (
    "max_model_len",
    "block_size",
    "num_kv_blocks",
    "kv_cache_memory_bytes",
    "max_num_seqs",
    "max_num_batched_tokens",
    "num_threads",
    "seed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """model: a folder, a hub id, a .gguf file, or `smollm2`, which is built in.

    dtype: auto, float32, bfloat16 or float16. device: auto, cpu or cuda. max_model_len: tokens of prompt and answer;
    None is the model's own. num_kv_blocks, or else kv_cache_memory_bytes, sizes the KV cache; None for both takes a
    part of the free memory. max_num_seqs: requests in one step. max_num_batched_tokens: tokens in one step; None is 512
    on CPU and 8192 on CUDA. num_threads: None is this process's CPU limit. deterministic: a request's tokens and
    logprobs are bitwise the same whatever shares its steps; slower, and on CPU only.

    seed: what requests without a seed of their own get theirs from, so that a script says the same each time it runs.
    """

    model: str = "smollm2"
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    max_num_seqs: int = 128
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool = True
    scheduling_policy: Policy = "fcfs"
    num_threads: int | None = None
    deterministic: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises `ConfigError` for a value of the wrong type."""
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and type(value) is not int:
                raise ConfigError(f"{name} is a whole number, got {value!r}")

    def engine_config(self, model_path: Path, vocab_size: int) -> EngineConfig:
        """For the model in `model_path`, whose tokenizer has `vocab_size` tokens. Raises `ConfigError`."""
        batched_tokens = self.max_num_batched_tokens
        if batched_tokens is None:
            batched_tokens = default_batched_tokens(choose_device(self.device).type)
        return EngineConfig(
            runner=RunnerConfig(
                model_path=model_path,
                dtype=self.dtype,
                device=self.device,
                block_size=self.block_size,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=batched_tokens,
                max_model_len=self.max_model_len,
                vocab_size=vocab_size,
                num_threads=self.num_threads,
                deterministic=self.deterministic,
            ),
            num_blocks=self.num_kv_blocks,
            kv_cache_bytes=self.kv_cache_memory_bytes,
            enable_prefix_caching=self.enable_prefix_caching,
            policy=self.scheduling_policy,
        )
