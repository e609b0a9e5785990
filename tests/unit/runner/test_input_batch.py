import numpy as np
import pytest

from roundhouse.runner.input_batch import InputBatch, StepInput
from roundhouse.scheduler.step import SchedulerOutput
from tests.support.runner_driver import new_request


def batch() -> InputBatch:
    return InputBatch(max_num_seqs=3, max_model_len=16, block_size=4)


def as_lists(step: StepInput) -> dict[str, list[int]]:
    names = ("num_scheduled", "token_ids", "positions", "sampling", "logits_indices")
    lists = {name: getattr(step, name).tolist() for name in names}
    attention = step.attention
    lists |= {
        "query_starts": attention.query_starts.tolist(),
        "context_lens": attention.context_lens.tolist(),
        "block_tables": attention.block_tables.tolist(),
        "slots": attention.slots.tolist(),
    }
    return lists


def test_two_requests_over_three_steps() -> None:
    rows = batch()
    long = new_request([10, 11, 12, 13, 14, 15], request_id="long", block_ids=[7])
    rows.apply(plan := SchedulerOutput([long], {"long": 4}))
    step = rows.prepare(plan)
    assert as_lists(step) == {
        "num_scheduled": [4],
        "token_ids": [10, 11, 12, 13],
        "positions": [0, 1, 2, 3],
        "sampling": [],
        "logits_indices": [],
        "query_starts": [0, 4],
        "context_lens": [0],
        "block_tables": [[7]],
        "slots": [28, 29, 30, 31],
    }
    rows.advance(step)

    short = new_request([20], request_id="short", block_ids=[3])
    rows.apply(plan := SchedulerOutput([short], {"long": 2, "short": 1}, {"long": [5]}))
    step = rows.prepare(plan)
    assert as_lists(step) == {
        "num_scheduled": [2, 1],
        "token_ids": [14, 15, 20],
        "positions": [4, 5, 0],
        "sampling": [0, 1],
        "logits_indices": [1, 2],
        "query_starts": [0, 2, 3],
        "context_lens": [4, 0],
        "block_tables": [[7, 5], [3, 0]],
        "slots": [20, 21, 12],
    }
    rows.advance(step)
    rows.append_tokens(step.rows, np.array([16, 21]))

    rows.apply(plan := SchedulerOutput([], {"short": 1}, finished=["long"]))
    step = rows.prepare(plan)
    assert as_lists(step) == {
        "num_scheduled": [1],
        "token_ids": [21],
        "positions": [1],
        "sampling": [0],
        "logits_indices": [0],
        "query_starts": [0, 1],
        "context_lens": [1],
        "block_tables": [[3]],
        "slots": [13],
    }
    assert step.attention.seq_lens.tolist() == [2]


def test_a_preempted_request_comes_back_whole_in_the_same_step() -> None:
    rows = batch()
    rows.apply(SchedulerOutput([new_request([1, 2, 3], request_id="a", block_ids=[1])], {"a": 3}))
    back = new_request([1, 2, 3, 4], request_id="a", num_outputs=1, block_ids=[9], num_computed_tokens=2)
    freed, added = rows.apply(plan := SchedulerOutput([back], {"a": 2}, finished=["a"]))
    assert (freed, added) == ([0], [(0, back)])
    step = rows.prepare(plan)
    assert (step.token_ids.tolist(), step.attention.slots.tolist()) == ([3, 4], [38, 39])
    assert rows.block_ids(0) == [9]
    assert rows.num_prompt_tokens[0] == 3


def test_the_longest_sequence_has_room_for_its_last_token() -> None:
    rows = batch()
    full = new_request(list(range(16)), block_ids=[1, 2, 3, 4])
    rows.apply(plan := SchedulerOutput([full], {"a": 16}))
    step = rows.prepare(plan)
    rows.advance(step)
    rows.append_tokens(step.rows, np.array([99]))
    assert rows.token_ids[0].tolist() == [*range(16), 99]


def test_an_unknown_finished_id_is_ignored_and_rows_are_used_again() -> None:
    rows = batch()
    for name in ("a", "b", "c"):
        rows.add(new_request([1], request_id=name))
    assert rows.remove("never came") is None
    assert rows.remove("b") == 1
    assert rows.add(new_request([1], request_id="d")) == 1


def test_a_scheduler_that_contradicts_itself_is_a_bug() -> None:
    rows = batch()
    rows.apply(SchedulerOutput([new_request([1], block_ids=[1])], {"a": 1}))
    with pytest.raises(AssertionError, match="a is in the batch already"):
        rows.add(new_request([1]))
    with pytest.raises(AssertionError, match="more tokens are scheduled"):
        rows.prepare(SchedulerOutput([], {"a": 2}))
