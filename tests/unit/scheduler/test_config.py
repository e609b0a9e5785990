from __future__ import annotations

from typing import Any

import pytest

from roundhouse.protocol.errors import ConfigError
from roundhouse.scheduler.config import SchedulerConfig


def test_defaults() -> None:
    config = SchedulerConfig(max_model_len=2048)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.policy) == (128, 2048, "fcfs")
    assert config.long_prefill_token_threshold == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"max_model_len": 1}, "max_model_len must be at least 2, got 1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1, got 0"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0, got -1"),
        ({"policy": "random"}, "the scheduling policy is one of fcfs, priority, got 'random'"),
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        SchedulerConfig(**{"max_model_len": 2048, **wrong})
