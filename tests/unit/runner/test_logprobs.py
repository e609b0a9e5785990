import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.protocol.messages import LogprobsLists
from roundhouse.runner.logprobs import compute_logprobs, likeliest


def test_rows_hold_the_token_that_came_and_then_the_likeliest() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 0.0, 0.0, 4.0]])
    exact = torch.log_softmax(logits, dim=1).numpy()
    rows = compute_logprobs(logits, torch.tensor([2, 3]), 2)
    assert rows.token_ids.tolist() == [[2, 1, 3], [3, 0, 3]]
    np.testing.assert_allclose(rows.logprobs, np.take_along_axis(exact, rows.token_ids.astype(int), axis=1), atol=1e-6)
    assert rows.ranks.tolist() == [3, 2]
    assert (rows.token_ids.dtype, rows.logprobs.dtype, rows.ranks.dtype) == (np.int32, np.float32, np.int32)


def test_without_likeliest_the_token_that_came_stands_alone() -> None:
    rows = compute_logprobs(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), 0)
    assert rows.token_ids.tolist() == [[1]]
    np.testing.assert_allclose(rows.logprobs, [[-np.log(2)]], atol=1e-6)


def test_equal_logits_share_the_better_rank() -> None:
    assert compute_logprobs(torch.tensor([[7.0, 7.0, 9.0]]), torch.tensor([1]), 1).ranks.tolist() == [2]


def test_lists_of_one_row_with_fewer_of_the_likeliest() -> None:
    rows = compute_logprobs(torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1]), 2)
    lists = rows.lists(1, 1)
    assert lists == LogprobsLists(token_ids=[[1, 0]], logprobs=[[lists.logprobs[0][0]] * 2], ranks=[1])


@settings(max_examples=50)
@given(rows=st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=1, max_size=4), k=st.integers(1, 7))
def test_the_likeliest_are_in_one_order_equal_ones_by_id(rows: list[list[int]], k: int) -> None:
    token_ids, logits = likeliest(torch.tensor(rows, dtype=torch.float32), k)
    expected = [sorted(range(7), key=lambda token: (-row[token], token))[:k] for row in rows]
    assert token_ids.tolist() == expected
    assert logits.tolist() == [[row[token] for token in ids] for row, ids in zip(rows, expected, strict=True)]
