import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.runner.slot_mapping import compute_slots, flatten_tokens

REQUESTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=6)


@given(requests=REQUESTS, data=st.data())
def test_tokens_and_slots_equal_a_loop_over_tokens(requests: list[tuple[int, int]], data: st.DataObject) -> None:
    block_size = 4
    rows = np.array(data.draw(st.permutations(range(8)))[: len(requests)])
    block_table = np.random.default_rng(0).permutation(8 * 8).reshape(8, 8).astype(np.int32)
    tokens = flatten_tokens(rows, np.array([done for done, _ in requests]), np.array([count for _, count in requests]))
    slots = compute_slots(block_table, tokens, block_size)

    loop = [
        (row, position, block_table[row, position // block_size] * block_size + position % block_size)
        for row, (done, count) in zip(rows, requests, strict=True)
        for position in range(done, done + count)
    ]
    assert list(zip(tokens.rows.tolist(), tokens.positions.tolist(), slots.tolist(), strict=True)) == loop
    assert tokens.starts.tolist() == [sum(count for _, count in requests[:place]) for place in range(len(requests) + 1)]
    assert slots.dtype == tokens.positions.dtype == np.int64
