"""`KVCacheManager`: block tables by request id. It knows ids and counts; what a request is, the scheduler knows.

The life of a block table: `get_computed_blocks` finds what others computed, `allocate_slots` opens the table and later
lengthens it, `cache_blocks` shares what has been computed, `free` closes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundhouse.kvcache.block import Block
from roundhouse.kvcache.block_pool import BlockPool
from roundhouse.kvcache.config import CacheConfig
from roundhouse.kvcache.validate import validate_blocks
from roundhouse.protocol.block_hash import BlockHash


@dataclass(slots=True)
class _BlockTable:
    """num_cached: how many blocks from the front have a hash."""

    blocks: list[Block]
    num_cached: int


class KVCacheManager:
    """The KV cache of one engine, without its tensors."""

    def __init__(self, config: CacheConfig) -> None:
        self.block_size = config.block_size
        self.enable_prefix_caching = config.enable_prefix_caching
        self._pool = BlockPool(config.num_blocks)
        self._tables: dict[str, _BlockTable] = {}

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free_blocks

    @property
    def usage(self) -> float:
        """Fraction of the blocks that requests hold, 0 … 1; the null block does not count."""
        return 1.0 - self._pool.num_free_blocks / self._pool.num_usable_blocks

    @property
    def capacity_tokens(self) -> int:
        """Slots in an empty cache."""
        return self._pool.num_usable_blocks * self.block_size

    @property
    def request_ids(self) -> set[str]:
        """Those with a block table."""
        return set(self._tables)

    def can_ever_hold(self, num_tokens: int) -> bool:
        """Whether an empty cache has room for `num_tokens` of one request."""
        return num_tokens <= self.capacity_tokens

    def get_computed_blocks(self, block_hashes: Sequence[BlockHash], num_tokens: int) -> list[Block]:
        """The longest cached prefix of a request of `num_tokens`: whole blocks, at most `num_tokens` - 1 tokens, since
        the last token has to be computed for its logits. Nothing is reserved: the blocks are good until the next call
        that changes the cache.
        """
        blocks: list[Block] = []
        if self.enable_prefix_caching:
            for block_hash in block_hashes[: (num_tokens - 1) // self.block_size]:
                block = self._pool.find(block_hash)
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def allocate_slots(
        self, request_id: str, num_tokens: int, computed_blocks: Sequence[Block] = ()
    ) -> list[int] | None:
        """Gives the request slots for its first `num_tokens` tokens, and keeps them for it until `free`.

        computed_blocks: from `get_computed_blocks`, for a request without a table. Returns the ids that were appended
        to the table after these, [] when it is long enough; None, with nothing changed, when too few blocks are free.
        """
        table = self._tables.get(request_id)
        num_held = len(computed_blocks) if table is None else len(table.blocks)
        num_new = self._blocks_for(num_tokens) - num_held
        if table is not None and num_new <= 0:
            return []
        # A hit block that nobody uses is taken out of the free list too.
        num_taken = num_new + sum(1 for block in computed_blocks if block.ref_count == 0)
        if num_taken > self._pool.num_free_blocks:
            return None
        if table is None:
            self._pool.share(computed_blocks)
            table = self._tables[request_id] = _BlockTable(list(computed_blocks), len(computed_blocks))
        else:
            assert not computed_blocks, f"{request_id} has a block table"
        new_blocks = self._pool.allocate(num_new)
        table.blocks += new_blocks
        return [block.block_id for block in new_blocks]

    def block_ids(self, request_id: str) -> list[int]:
        """The request's block table, a copy."""
        return [block.block_id for block in self._tables[request_id].blocks]

    def cache_blocks(self, request_id: str, block_hashes: Sequence[BlockHash], num_computed_tokens: int) -> None:
        """Lets others find the request's blocks that `num_computed_tokens` fill; `block_hashes` has at least those."""
        if not self.enable_prefix_caching:
            return
        table = self._tables[request_id]
        num_full = num_computed_tokens // self.block_size
        for index in range(table.num_cached, num_full):
            self._pool.cache(table.blocks[index], block_hashes[index])
        table.num_cached = max(table.num_cached, num_full)

    def forget(self, request_id: str) -> None:
        """Nobody finds any more what the request alone has computed: it is not to be trusted."""
        table = self._tables[request_id]
        self._pool.uncache(table.blocks)
        table.num_cached = len(table.blocks)

    def free(self, request_id: str) -> None:
        """Closes the request's block table. What it cached can be hit until its blocks are given out again."""
        self._pool.free(self._tables.pop(request_id).blocks)

    def reset_prefix_cache(self) -> bool:
        """Forgets all that is cached. False, with nothing changed, while a request holds a block."""
        return self._pool.reset_cache()

    def validate_state(self) -> None:
        """Raises AssertionError that names every broken invariant of docs/kvcache.md. O(blocks): for tests."""
        validate_blocks(self._pool, {request_id: table.blocks for request_id, table in self._tables.items()})

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)
