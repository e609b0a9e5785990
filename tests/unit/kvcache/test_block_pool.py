from __future__ import annotations

import pytest

from roundhouse.kvcache.block_pool import NULL_BLOCK_ID, BlockPool
from roundhouse.protocol.block_hash import BlockHash

HASH = BlockHash(b"h" * 32)
OTHER = BlockHash(b"o" * 32)


def free_ids(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_list]


def test_the_null_block_is_never_given_out() -> None:
    pool = BlockPool(4)
    assert (pool.num_usable_blocks, pool.num_free_blocks) == (3, 3)
    assert NULL_BLOCK_ID not in [block.block_id for block in pool.allocate(3)]
    with pytest.raises(AssertionError, match="more blocks"):
        pool.allocate(1)


def test_frees_the_tail_first_and_keeps_cached_blocks_longest() -> None:
    pool = BlockPool(6)
    one, two, three = pool.allocate(3)
    pool.cache(one, HASH)
    pool.cache(two, OTHER)
    pool.free([one, two, three])
    # 3 has no hash and goes first; of the cached prefix its end goes before its start.
    assert free_ids(pool) == [3, 4, 5, 2, 1]


def test_blocks_without_a_hash_go_to_the_front_in_order() -> None:
    pool = BlockPool(6)
    pool.free(pool.allocate(3))
    assert free_ids(pool) == [1, 2, 3, 4, 5]


def test_a_freed_block_is_found_until_it_is_given_out_again() -> None:
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.cache(block, HASH)
    pool.free([block])
    assert pool.find(HASH) is block
    pool.allocate(1)
    assert pool.find(HASH) is block
    assert pool.allocate(1) == [block]
    assert (pool.find(HASH), block.block_hash, pool.blocks_by_hash) == (None, None, {})


def test_sharing_takes_a_free_block_out_of_the_middle() -> None:
    pool = BlockPool(5)
    blocks = pool.allocate(3)
    for block, block_hash in zip(blocks, (HASH, OTHER, BlockHash(b"x")), strict=True):
        pool.cache(block, block_hash)
    pool.free(blocks)
    assert free_ids(pool) == [4, 3, 2, 1]
    pool.share([blocks[1]])
    pool.share([blocks[1]])
    assert free_ids(pool) == [4, 3, 1]
    assert blocks[1].ref_count == 2
    pool.free([blocks[1]])
    assert free_ids(pool) == [4, 3, 1]
    pool.free([blocks[1]])
    assert free_ids(pool) == [4, 3, 1, 2]


def test_one_hash_names_several_blocks_and_outlives_each() -> None:
    pool = BlockPool(3)
    one, two = pool.allocate(2)
    pool.cache(one, HASH)
    pool.cache(two, HASH)
    assert pool.find(HASH) is one
    pool.free([one])
    pool.allocate(1)
    assert pool.find(HASH) is two


def test_reset_forgets_everything_or_nothing() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.cache(blocks[0], HASH)
    assert pool.reset_cache() is False
    assert pool.find(HASH) is blocks[0]
    pool.free(blocks)
    assert pool.reset_cache() is True
    assert (pool.find(HASH), pool.num_free_blocks) == (None, 3)
    assert [block.block_hash for block in pool.blocks] == [None] * 4


def test_freeing_twice_and_caching_what_is_free_or_cached_are_bugs() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    pool.cache(block, HASH)
    with pytest.raises(AssertionError, match="cached already"):
        pool.cache(block, OTHER)
    pool.free([block])
    with pytest.raises(AssertionError, match="free already"):
        pool.free([block])
    with pytest.raises(AssertionError, match="is free"):
        pool.cache(block, OTHER)
