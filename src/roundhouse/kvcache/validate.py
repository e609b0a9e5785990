"""What must hold between any two calls, checked in full: for tests and for hunting a bug, never on the hot path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from roundhouse.kvcache.block import Block
from roundhouse.kvcache.block_pool import NULL_BLOCK_ID, BlockPool


def validate_blocks(pool: BlockPool, tables: Mapping[str, Sequence[Block]]) -> None:
    """Raises AssertionError that names every broken invariant of docs/kvcache.md."""
    problems = [*_free_list_problems(pool), *_owner_problems(pool, tables), *_cache_problems(pool)]
    if problems:
        raise AssertionError("; ".join(problems))


def _free_list_problems(pool: BlockPool) -> Iterator[str]:
    """The list is one ring without a repeat, and holds exactly the blocks without an owner."""
    listed: list[int] = []
    for block in pool.free_list:
        if block.next is None or block.next.previous is not block:
            yield f"the link behind block {block.block_id} is broken"
            return
        listed.append(block.block_id)
        if len(listed) > len(pool.blocks):
            yield "the free list runs in a circle"
            return
    if len(listed) != len(pool.free_list):
        yield f"the free list counts {len(pool.free_list)} blocks and links {len(listed)}"
    ownerless = {block.block_id for block in pool.blocks[NULL_BLOCK_ID + 1 :] if block.ref_count == 0}
    if set(listed) != ownerless:
        yield f"lost blocks: {sorted(ownerless - set(listed))}; free blocks in use: {sorted(set(listed) - ownerless)}"


def _owner_problems(pool: BlockPool, tables: Mapping[str, Sequence[Block]]) -> Iterator[str]:
    """Reference counts are the owners, and only a block with a hash has two: it is full and never written again."""
    owners: Counter[int] = Counter()
    for request_id, blocks in tables.items():
        block_ids = [block.block_id for block in blocks]
        owners.update(block_ids)
        if len(set(block_ids)) < len(block_ids):
            yield f"{request_id} holds a block twice: {block_ids}"
        if any(pool.blocks[block.block_id] is not block for block in blocks):
            yield f"{request_id} holds a block that is not the pool's"
    for block in pool.blocks:
        if block.ref_count != owners[block.block_id]:
            yield f"block {block.block_id} counts {block.ref_count} owners and has {owners[block.block_id]}"
        if block.ref_count > 1 and block.block_hash is None:
            yield f"block {block.block_id} is shared and can still be written"
    null = pool.blocks[NULL_BLOCK_ID]
    if null.ref_count or null.block_hash is not None or null.next is not None:
        yield "the null block is in use"


def _cache_problems(pool: BlockPool) -> Iterator[str]:
    """The map of hashes and the hashes in the blocks say the same."""
    mapped = {(h, block_id) for h, same in pool.blocks_by_hash.items() for block_id in same}
    carried = {(block.block_hash, block.block_id) for block in pool.blocks if block.block_hash is not None}
    if mapped != carried:
        yield f"the prefix cache disagrees with blocks {sorted(block_id for _, block_id in mapped ^ carried)}"
    if not all(pool.blocks_by_hash.values()):
        yield "the prefix cache keeps a hash without a block"
