"""`Block`, a run of `block_size` token slots, and `FreeList`, the free blocks in the order in which they are reused.

The list is intrusive: its links live in the blocks, so that a free block that gets hit leaves the middle in O(1) and
no node is ever allocated. The idea is vLLM's `FreeKVCacheBlockQueue`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from roundhouse.protocol.block_hash import BlockHash


@dataclass(slots=True, eq=False)
class Block:
    """One block, changed by `BlockPool` alone.

    ref_count: block tables that hold it; 0 is free. block_hash: set while its content can be found and shared, which
    outlives its owners. The links are None outside a free list.
    """

    block_id: int
    ref_count: int = 0
    block_hash: BlockHash | None = None
    previous: Block | None = field(default=None, repr=False)
    next: Block | None = field(default=None, repr=False)


class FreeList:
    """Free blocks, the next to be reused in front. Every operation but iteration is O(1)."""

    __slots__ = ("_length", "_root")

    def __init__(self) -> None:
        # One sentinel closes the ring, so that no operation has a special case for an end of the list.
        self._root = Block(-1)
        self._root.previous = self._root.next = self._root
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        """Front to back. The list may not change meanwhile."""
        block = self._root.next
        while block is not None and block is not self._root:
            yield block
            block = block.next

    def pop_front(self) -> Block:
        """Takes the block that is next to be reused. The list may not be empty."""
        block = self._root.next
        assert block is not None
        assert block is not self._root, "the free list is empty"
        self.remove(block)
        return block

    def push_front(self, block: Block) -> None:
        """`block` is reused next."""
        assert self._root.next is not None
        self._link(self._root, block, self._root.next)

    def push_back(self, block: Block) -> None:
        """`block` is reused last."""
        assert self._root.previous is not None
        self._link(self._root.previous, block, self._root)

    def remove(self, block: Block) -> None:
        """Takes `block` out from wherever it stands; it must stand in this list."""
        before, after = block.previous, block.next
        assert before is not None, f"block {block.block_id} is in no free list"
        assert after is not None
        before.next, after.previous = after, before
        block.previous = block.next = None
        self._length -= 1

    def _link(self, before: Block, block: Block, after: Block) -> None:
        assert block.previous is None, f"block {block.block_id} is in a free list already"
        block.previous, block.next = before, after
        before.next = after.previous = block
        self._length += 1
