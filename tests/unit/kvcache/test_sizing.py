from __future__ import annotations

import pytest

from roundhouse.kvcache.sizing import KVCacheShape, bytes_per_block, num_blocks_for_budget, num_blocks_for_sequence
from roundhouse.protocol.errors import ConfigError

SMOLLM2 = KVCacheShape(num_layers=30, num_kv_heads=3, head_size=64, dtype_bytes=2)


def test_bytes_of_keys_and_values_of_all_layers():
    assert SMOLLM2.bytes_per_token == 2 * 30 * 3 * 64 * 2 == 23_040
    assert bytes_per_block(SMOLLM2, 16) == 368_640


def test_a_budget_holds_whole_blocks():
    budget = 368_640 * 600 - 1
    assert num_blocks_for_budget(SMOLLM2, block_size=16, memory_bytes=budget, max_model_len=8192) == 599


def test_one_sequence_and_the_null_block_must_fit():
    assert num_blocks_for_sequence(33, 16) == 4
    for_one = {"block_size": 16, "max_model_len": 33}
    assert num_blocks_for_budget(SMOLLM2, memory_bytes=4 * 368_640, **for_one) == 4
    with pytest.raises(ConfigError) as error:
        num_blocks_for_budget(SMOLLM2, memory_bytes=4 * 368_640 - 1, **for_one)
    assert error.value.message == (
        "the KV cache has 1.4 MiB and one sequence of 33 tokens needs 1.4 MiB: "
        "give it more memory or lower max_model_len to 32 tokens at most"
    )


def test_no_memory_at_all_is_said_plainly():
    with pytest.raises(ConfigError, match=r"has 0\.0 MiB .*: give it more memory$"):
        num_blocks_for_budget(SMOLLM2, block_size=16, memory_bytes=0, max_model_len=2048)
