"""The validator has to see each kind of damage: a test that cannot fail tests nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from roundhouse.kvcache.block import Block
from roundhouse.kvcache.block_pool import BlockPool
from roundhouse.kvcache.validate import validate_blocks
from roundhouse.protocol.block_hash import BlockHash

HASH = BlockHash(b"h" * 32)
Tables = dict[str, list[Block]]


def sound() -> tuple[BlockPool, Tables]:
    """Block 1 is cached and shared, 2 and 3 have one owner each, 4 and 5 are free."""
    pool = BlockPool(6)
    tables: Tables = {"a": pool.allocate(2)}
    pool.cache(tables["a"][0], HASH)
    pool.share(tables["a"][:1])
    tables["b"] = [tables["a"][0], *pool.allocate(1)]
    return pool, tables


def test_a_sound_pool_passes() -> None:
    validate_blocks(*sound())


def lose_a_block(pool: BlockPool, tables: Tables) -> None:
    pool.free_list.pop_front()


def free_a_block_in_use(pool: BlockPool, tables: Tables) -> None:
    pool.free_list.push_back(tables["a"][1])


def forget_an_owner(pool: BlockPool, tables: Tables) -> None:
    tables["a"][0].ref_count -= 1


def share_without_a_hash(pool: BlockPool, tables: Tables) -> None:
    tables["b"].append(tables["a"][1])
    tables["a"][1].ref_count += 1


def repeat_a_block(pool: BlockPool, tables: Tables) -> None:
    tables["a"].append(tables["a"][0])
    tables["a"][0].ref_count += 1


def give_out_the_null_block(pool: BlockPool, tables: Tables) -> None:
    tables["a"].append(pool.blocks[0])
    pool.blocks[0].ref_count = 1


def forget_a_hash(pool: BlockPool, tables: Tables) -> None:
    pool.blocks_by_hash.clear()


def keep_an_empty_hash(pool: BlockPool, tables: Tables) -> None:
    pool.blocks_by_hash[BlockHash(b"x")] = {}


def hold_a_stranger(pool: BlockPool, tables: Tables) -> None:
    tables["a"][1] = Block(2, ref_count=1)


def break_a_link(pool: BlockPool, tables: Tables) -> None:
    pool.blocks[5].previous = pool.blocks[2]


def close_a_circle(pool: BlockPool, tables: Tables) -> None:
    pool.blocks[5].next, pool.blocks[4].previous = pool.blocks[4], pool.blocks[5]


def miscount(pool: BlockPool, tables: Tables) -> None:
    pool.free_list._length += 1


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lose_a_block, r"lost blocks: \[4\]"),
        (free_a_block_in_use, r"free blocks in use: \[2\]"),
        (forget_an_owner, "block 1 counts 1 owners and has 2"),
        (share_without_a_hash, "block 2 is shared and can still be written"),
        (repeat_a_block, r"a holds a block twice: \[1, 2, 1\]"),
        (give_out_the_null_block, "the null block is in use"),
        (forget_a_hash, r"the prefix cache disagrees with blocks \[1\]"),
        (keep_an_empty_hash, "keeps a hash without a block"),
        (hold_a_stranger, "a holds a block that is not the pool's"),
        (break_a_link, "the link behind block 4 is broken"),
        (close_a_circle, "the free list runs in a circle"),
        (miscount, "counts 3 blocks and links 2"),
    ],
)
def test_damage_is_named(damage: Callable[[BlockPool, Tables], None], told: str) -> None:
    pool, tables = sound()
    damage(pool, tables)
    with pytest.raises(AssertionError, match=told):
        validate_blocks(pool, tables)
