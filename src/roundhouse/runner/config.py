"""What the runner and the worker are told; made by the engine from its own configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from roundhouse.protocol.errors import ConfigError

DTYPE_NAMES = ("auto", "float32", "bfloat16", "float16")
DEVICE_NAMES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """model_path: a folder with config.json and safetensors. block_size: tokens a KV block.

    vocab_size: of the tokenizer; logits beyond it are never sampled. None is the model's own.
    max_model_len: None is the longest that the model serves. num_threads: None is this process's CPU limit.
    deterministic: a request's logits are bitwise the same whatever else the engine does; on CPU only.
    """

    model_path: Path
    dtype: str = "auto"
    device: str = "auto"
    block_size: int = 16
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    vocab_size: int | None = None
    num_threads: int | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_NAMES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPE_NAMES)}, got {self.dtype}")
        if self.device not in DEVICE_NAMES:
            raise ConfigError(f"device must be one of {', '.join(DEVICE_NAMES)}, got {self.device}")
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise ConfigError(f"block_size must be a power of two, got {self.block_size}")
        if self.deterministic and self.device == "cuda":
            raise ConfigError("deterministic execution is for the CPU, and the device is cuda")
        if self.deterministic and self.dtype == "float16":
            raise ConfigError("deterministic execution computes in float32 or bfloat16, not in float16")
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "vocab_size", "num_threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
