import numpy as np
import pytest
import torch

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.sampling_rows import SamplingRows
from tests.support.runner_driver import new_request


def rows() -> SamplingRows:
    return SamplingRows(max_num_seqs=3, vocab_size=10, device=torch.device("cpu"))


def test_a_draw_reads_the_rows_of_its_batch() -> None:
    params = rows()
    first = SamplingParams(temperature=0.7, top_k=-1, top_p=0.9)
    second = SamplingParams(temperature=0.001, top_k=4, min_p=0.1)
    params.add(2, new_request([1], first, seed=-1, child_index=3))
    params.add(0, new_request([1], second, seed=7))
    draw = params.draw(np.array([2, 0]), np.array([5, 6]))
    columns = {name: getattr(draw, name).tolist() for name in draw.__slots__}
    assert columns == {
        "temperature": [np.float32(0.7), np.float32(0.01)],
        "top_k": [10, 4],
        "top_p": [0.9, 1.0],
        "min_p": [0.0, 0.1],
        "seeds": [2**64 - 1, 7],
        "child_indices": [3, 0],
        "positions": [5, 6],
    }
    assert draw.is_restricted(10).tolist() == [True, True]
    assert draw.take(np.array([1])).seeds.tolist() == [7]


def test_a_row_forgets_its_last_request() -> None:
    params = rows()
    params.add(0, new_request([1], SamplingParams(logit_bias={1: 1.0}, presence_penalty=1.0, logprobs=3)))
    params.add(0, new_request([1], SamplingParams(temperature=0.0)))
    assert (params.edits, params.seen) == ({}, {})
    flags = (params.is_edited, params.is_greedy, params.has_logprobs, params.num_logprobs, params.is_plain)
    assert [flag[0] for flag in flags] == [False, True, False, 0, True]


def test_outputs_reach_the_penalties_of_their_own_row() -> None:
    params = rows()
    penalized = SamplingParams(frequency_penalty=1.0)
    params.add(0, new_request([1, 4], penalized, num_outputs=1))
    params.add(1, new_request([1], SamplingParams()))
    params.append_tokens(np.array([1, 0]), np.array([8, 9]))
    assert params.seen[0].token_ids.tolist() == [4, 9]


def test_a_refused_request_leaves_no_parameters_behind() -> None:
    params = rows()
    with pytest.raises(InvalidRequest):
        params.add(0, new_request([1], SamplingParams(logit_bias={10: 1.0}, presence_penalty=1.0)))
    assert (params.edits, params.seen) == ({}, {})
