"""`SchedulerConfig`: what one step may hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from roundhouse.protocol.errors import ConfigError

Policy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """max_model_len: prompt and outputs of one request together. max_num_batched_tokens: tokens computed in one step.

    long_prefill_token_threshold: most tokens of one request in one step while others are live; 0 is off.
    Raises `ConfigError`.
    """

    max_model_len: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    policy: Policy = "fcfs"
    long_prefill_token_threshold: int = 0

    def __post_init__(self) -> None:
        for name, smallest in (
            ("max_model_len", 2),
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("long_prefill_token_threshold", 0),
        ):
            if getattr(self, name) < smallest:
                raise ConfigError(f"{name} must be at least {smallest}, got {getattr(self, name)}")
        if self.policy not in get_args(Policy):
            raise ConfigError(f"the scheduling policy is one of {', '.join(get_args(Policy))}, got {self.policy!r}")
