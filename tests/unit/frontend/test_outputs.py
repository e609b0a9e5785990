"""Log probabilities read as vLLM's too: a mapping from token ids."""

import pytest

from roundhouse.frontend.outputs import CompletionOutput, PositionLogprobs, TokenLogprob

A, B, C = (TokenLogprob(index, name, name.encode(), -float(index), index) for index, name in enumerate("abc", start=1))


@pytest.mark.parametrize(
    ("position", "entries"),
    [
        (PositionLogprobs(C, [A, B]), [(3, C), (1, A), (2, B)]),
        (PositionLogprobs(B, [A, B]), [(2, B), (1, A)]),
        (PositionLogprobs(A, []), [(1, A)]),
    ],
)
def test_a_position_is_a_mapping_with_the_sampled_token_first(position, entries) -> None:
    assert list(position.items()) == entries
    assert len(position) == len(entries)
    assert position[entries[0][0]].decoded_token == entries[0][1].token
    assert 9 not in position


def test_a_choice_is_finished_when_it_has_a_reason() -> None:
    assert not CompletionOutput(0, "", []).finished()
    assert CompletionOutput(0, "", [], finish_reason="stop").finished()
