from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.kvcache.block import Block, FreeList


def ids(free_list: FreeList) -> list[int]:
    return [block.block_id for block in free_list]


def test_leaves_from_the_front_and_joins_at_both_ends() -> None:
    free_list = FreeList()
    blocks = [Block(block_id) for block_id in range(4)]
    for block in blocks[:3]:
        free_list.push_back(block)
    free_list.push_front(blocks[3])
    assert ids(free_list) == [3, 0, 1, 2]
    assert free_list.pop_front() is blocks[3]
    free_list.remove(blocks[1])
    assert ids(free_list) == [0, 2]
    assert len(free_list) == 2


def test_a_block_that_left_has_no_links() -> None:
    free_list = FreeList()
    block = Block(7)
    free_list.push_back(block)
    assert free_list.pop_front() is block
    assert (block.previous, block.next, len(free_list)) == (None, None, 0)


def test_misuse_is_caught() -> None:
    free_list = FreeList()
    with pytest.raises(AssertionError, match="empty"):
        free_list.pop_front()
    block = Block(1)
    free_list.push_back(block)
    with pytest.raises(AssertionError, match="already"):
        free_list.push_front(block)
    free_list.remove(block)
    with pytest.raises(AssertionError, match="in no free list"):
        free_list.remove(block)


@given(st.lists(st.tuples(st.sampled_from(["front", "back", "pop", "remove"]), st.integers(0, 9)), max_size=60))
def test_behaves_as_a_list(operations: list[tuple[str, int]]) -> None:
    blocks = [Block(block_id) for block_id in range(10)]
    free_list, model = FreeList(), list[int]()
    for operation, block_id in operations:
        match operation:
            case "front" if block_id not in model:
                free_list.push_front(blocks[block_id])
                model.insert(0, block_id)
            case "back" if block_id not in model:
                free_list.push_back(blocks[block_id])
                model.append(block_id)
            case "pop" if model:
                assert free_list.pop_front().block_id == model.pop(0)
            case "remove" if block_id in model:
                free_list.remove(blocks[block_id])
                model.remove(block_id)
        assert ids(free_list) == model
        assert len(free_list) == len(model)
