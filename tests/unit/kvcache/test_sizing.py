from __future__ import annotations

import pytest

from roundhouse.kvcache.sizing import num_blocks_for_budget, num_blocks_for_sequence
from roundhouse.protocol.errors import ConfigError

SMOLLM2 = 368_640
"""Bytes a block of 16 tokens: keys and values of 30 layers with 3 heads of 64 in bfloat16."""


def test_a_budget_holds_whole_blocks() -> None:
    budget = 368_640 * 600 - 1
    assert num_blocks_for_budget(SMOLLM2, block_size=16, memory_bytes=budget, max_model_len=8192) == 599


def test_one_sequence_and_the_null_block_must_fit() -> None:
    assert num_blocks_for_sequence(33, 16) == 4
    for_one = {"block_size": 16, "max_model_len": 33}
    assert num_blocks_for_budget(SMOLLM2, memory_bytes=4 * 368_640, **for_one) == 4
    with pytest.raises(ConfigError) as error:
        num_blocks_for_budget(SMOLLM2, memory_bytes=4 * 368_640 - 1, **for_one)
    assert error.value.message == (
        "the KV cache has 1.4 MiB and one sequence of 33 tokens needs 1.4 MiB: "
        "give it more memory or lower max_model_len to 32 tokens at most"
    )


def test_no_memory_at_all_is_said_plainly() -> None:
    with pytest.raises(ConfigError, match=r"has 0\.0 MiB .*: give it more memory$"):
        num_blocks_for_budget(SMOLLM2, block_size=16, memory_bytes=0, max_model_len=2048)
