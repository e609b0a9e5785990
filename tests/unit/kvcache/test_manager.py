from __future__ import annotations

from roundhouse.kvcache.config import CacheConfig
from roundhouse.kvcache.manager import KVCacheManager
from roundhouse.protocol.block_hash import BlockHash, extend_chain, root_hash


def manager(num_blocks: int = 11, *, enable_prefix_caching: bool = True) -> KVCacheManager:
    config = CacheConfig(num_blocks=num_blocks, block_size=4, enable_prefix_caching=enable_prefix_caching)
    return KVCacheManager(config)


def chain(token_ids: list[int], cache_salt: str | None = None) -> list[BlockHash]:
    hashes: list[BlockHash] = []
    extend_chain(hashes, root_hash(cache_salt=cache_salt), token_ids, 4)
    return hashes


def compute(kv: KVCacheManager, request_id: str, token_ids: list[int]) -> list[int]:
    """Admits, computes and caches a whole request; its block table."""
    hashes = chain(token_ids)
    assert kv.allocate_slots(request_id, len(token_ids), kv.get_computed_blocks(hashes, len(token_ids))) is not None
    kv.cache_blocks(request_id, hashes, len(token_ids))
    kv.validate_state()
    return kv.block_ids(request_id)


def hit_ids(kv: KVCacheManager, token_ids: list[int]) -> list[int]:
    return [block.block_id for block in kv.get_computed_blocks(chain(token_ids), len(token_ids))]


def test_a_table_grows_a_block_at_a_time() -> None:
    kv = manager()
    assert kv.allocate_slots("a", 5) == [1, 2]
    assert kv.allocate_slots("a", 8) == []
    assert kv.allocate_slots("a", 9) == [3]
    assert kv.block_ids("a") == [1, 2, 3]
    assert kv.request_ids == {"a"}
    kv.free("a")
    assert (kv.request_ids, kv.num_free_blocks, kv.usage) == (set(), 10, 0.0)


def test_usage_leaves_the_null_block_out() -> None:
    kv = manager()
    kv.allocate_slots("a", 20)
    assert (kv.usage, kv.capacity_tokens) == (0.5, 40)
    kv.allocate_slots("b", 20)
    assert kv.usage == 1.0


def test_nothing_changes_without_room() -> None:
    kv = manager(4)
    compute(kv, "a", list(range(9)))
    assert kv.allocate_slots("b", 1) is None
    assert kv.allocate_slots("a", 13) is None
    assert (kv.request_ids, kv.block_ids("a"), kv.num_free_blocks) == ({"a"}, [1, 2, 3], 0)
    kv.validate_state()


def test_can_ever_hold_is_about_the_empty_cache() -> None:
    kv = manager(4)
    kv.allocate_slots("a", 12)
    assert kv.can_ever_hold(12)
    assert not kv.can_ever_hold(13)


def test_a_hit_covers_whole_blocks_and_leaves_the_last_token() -> None:
    kv = manager()
    token_ids = list(range(12))
    table = compute(kv, "a", token_ids)
    assert hit_ids(kv, token_ids) == table[:2]
    assert hit_ids(kv, [*token_ids, 99]) == table[:3]
    assert hit_ids(kv, token_ids[:8]) == table[:1]
    assert hit_ids(kv, token_ids[:4]) == []
    assert hit_ids(kv, [0, 1, 2, 3, 4, 99, 6, 7, 8]) == table[:1]
    assert hit_ids(kv, [99, *token_ids[1:]]) == []


def test_only_computed_tokens_are_cached() -> None:
    kv = manager()
    token_ids = list(range(12))
    hashes = chain(token_ids)
    kv.allocate_slots("a", 12)
    assert hit_ids(kv, token_ids) == []
    kv.cache_blocks("a", hashes, 7)
    assert hit_ids(kv, token_ids) == [1]
    kv.cache_blocks("a", hashes, 7)
    kv.cache_blocks("a", hashes, 12)
    assert hit_ids(kv, [*token_ids, 99]) == [1, 2, 3]
    kv.validate_state()


def test_shared_blocks_live_until_their_last_owner_goes() -> None:
    kv = manager()
    token_ids = list(range(9))
    assert compute(kv, "a", token_ids) == [1, 2, 3]
    assert compute(kv, "b", token_ids) == [1, 2, 4]
    kv.free("a")
    kv.validate_state()
    assert kv.num_free_blocks == 7
    kv.free("b")
    assert kv.num_free_blocks == 10


def test_free_hit_blocks_count_as_taken() -> None:
    kv = manager(4)
    token_ids = list(range(9))
    compute(kv, "a", token_ids)
    kv.free("a")
    kv.allocate_slots("b", 4)
    hits = kv.get_computed_blocks(chain(token_ids), 9)
    assert [block.block_id for block in hits] == [1, 2]
    # Three blocks in all: one is taken, and the hit needs its own two and a third.
    assert kv.allocate_slots("c", 9, hits) is None
    kv.free("b")
    assert kv.allocate_slots("c", 9, hits) == [3]
    assert kv.block_ids("c") == [1, 2, 3]
    kv.validate_state()


def test_a_hit_block_is_not_given_out_to_the_same_request() -> None:
    kv = manager(4)
    token_ids = list(range(12))
    compute(kv, "a", token_ids)
    kv.free("a")
    # All blocks are cached and free; the first in line for reuse is block 3, and after it the hit itself.
    hits = kv.get_computed_blocks(chain(token_ids), 12)
    assert kv.allocate_slots("b", 12, hits) == [3]
    kv.validate_state()


def test_salts_keep_prefixes_apart() -> None:
    kv = manager()
    token_ids = list(range(9))
    compute(kv, "a", token_ids)
    assert kv.get_computed_blocks(chain(token_ids, cache_salt="s"), 9) == []


def test_without_prefix_caching_nothing_is_found() -> None:
    kv = manager(enable_prefix_caching=False)
    compute(kv, "a", list(range(9)))
    assert hit_ids(kv, list(range(9))) == []
    kv.free("a")
    assert kv.num_free_blocks == 10


def test_equal_blocks_are_kept_apart() -> None:
    kv = manager()
    token_ids = list(range(9))
    hashes = chain(token_ids)
    kv.allocate_slots("a", 9)
    kv.allocate_slots("b", 9)
    kv.cache_blocks("a", hashes, 9)
    kv.cache_blocks("b", hashes, 9)
    kv.validate_state()
    assert (kv.block_ids("a"), kv.block_ids("b")) == ([1, 2, 3], [4, 5, 6])
    kv.free("a")
    kv.free("b")
    assert kv.reset_prefix_cache()
    assert hit_ids(kv, token_ids) == []
    kv.validate_state()


def test_what_a_request_computed_alone_can_be_forgotten() -> None:
    kv = manager()
    compute(kv, "a", [1] * 4 + [2] * 8)
    compute(kv, "b", [1] * 4 + [3] * 4)
    kv.forget("a")
    kv.validate_state()
    assert hit_ids(kv, [1] * 4 + [2] * 9) == [1], "the shared block stays"
    kv.free("a")
    kv.free("b")
    kv.validate_state()
    assert hit_ids(kv, [1] * 4 + [2] * 9) == [1]
    assert kv.num_free_blocks == 10
