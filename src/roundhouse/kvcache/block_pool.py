"""`BlockPool`: all blocks; gives them out, shares them by hash, takes them back, forgets what it must overwrite.

A freed block keeps its hash and its place in the prefix cache until it is given out again: eviction is reallocation.
Blocks with equal content are not merged, for block tables only ever grow at their end; so one hash may name several.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from roundhouse.kvcache.block import Block, FreeList
from roundhouse.protocol.block_hash import BlockHash

NULL_BLOCK_ID = 0
"""Never given out: padding in block tables and slot mappings may point at it."""


class BlockPool:
    """Owner of every `Block`. `blocks[i].block_id == i`."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks: list[Block] = [Block(block_id) for block_id in range(num_blocks)]
        self.free_list = FreeList()
        self.blocks_by_hash: dict[BlockHash, dict[int, Block]] = {}
        for block in self.blocks[NULL_BLOCK_ID + 1 :]:
            self.free_list.push_back(block)

    @property
    def num_usable_blocks(self) -> int:
        """All but the null block."""
        return len(self.blocks) - 1

    @property
    def num_free_blocks(self) -> int:
        return len(self.free_list)

    def find(self, block_hash: BlockHash) -> Block | None:
        """A block with that content, in use or free."""
        same = self.blocks_by_hash.get(block_hash)
        return next(iter(same.values())) if same else None

    def allocate(self, num_blocks: int) -> list[Block]:
        """`num_blocks` blocks for one owner, out of the cache from now on. There must be as many free ones."""
        assert num_blocks <= len(self.free_list), "more blocks asked for than are free"
        blocks = [self.free_list.pop_front() for _ in range(num_blocks)]
        for block in blocks:
            self._evict(block)
            block.ref_count = 1
        return blocks

    def share(self, blocks: Iterable[Block]) -> None:
        """One more owner for each; those that were free leave the free list."""
        for block in blocks:
            if block.ref_count == 0:
                self.free_list.remove(block)
            block.ref_count += 1

    def cache(self, block: Block, block_hash: BlockHash) -> None:
        """Makes a full, computed block findable."""
        assert block.ref_count > 0, f"block {block.block_id} is free"
        assert block.block_hash is None, f"block {block.block_id} is cached already"
        block.block_hash = block_hash
        self.blocks_by_hash.setdefault(block_hash, {})[block.block_id] = block

    def uncache(self, blocks: Iterable[Block]) -> None:
        """Makes those of the blocks that have one owner unfindable; a shared one stays: others rely on it."""
        for block in blocks:
            if block.ref_count == 1:
                self._evict(block)

    def free(self, blocks: Sequence[Block]) -> None:
        """One owner fewer for each block of a block table; the last owner frees it, tail blocks first.

        A cached block goes to the back, so that it is overwritten as late as can be, and the end of a prefix before its
        start, without which the end is of no use. A block without a hash helps nobody and goes to the front.
        """
        for block in reversed(blocks):
            assert block.ref_count > 0, f"block {block.block_id} is free already"
            block.ref_count -= 1
            if block.ref_count > 0:
                continue
            if block.block_hash is None:
                self.free_list.push_front(block)
            else:
                self.free_list.push_back(block)

    def reset_cache(self) -> bool:
        """Forgets every hash. False, with nothing changed, while a block is in use."""
        if len(self.free_list) < self.num_usable_blocks:
            return False
        for block in self.free_list:
            block.block_hash = None
        self.blocks_by_hash.clear()
        return True

    def _evict(self, block: Block) -> None:
        block_hash = block.block_hash
        if block_hash is None:
            return
        same = self.blocks_by_hash[block_hash]
        del same[block.block_id]
        if not same:
            del self.blocks_by_hash[block_hash]
        block.block_hash = None
