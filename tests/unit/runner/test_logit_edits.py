import pytest
import torch

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.logit_edits import LogitEdits, has_logit_edits
from tests.support.runner_driver import new_request

CPU = torch.device("cpu")
NO = float("-inf")


def edited(params: SamplingParams, *, num_outputs: int = 0, stops: frozenset[int] = frozenset()) -> list[float]:
    logits = torch.arange(6, dtype=torch.float32)
    LogitEdits(new_request([1], params, stop_token_ids=stops), vocab_size=6, device=CPU).apply(logits, num_outputs)
    return logits.tolist()


def test_only_allowed_tokens_stay_possible() -> None:
    assert edited(SamplingParams(allowed_token_ids=[4, 1])) == [NO, 1, NO, NO, 4, NO]


def test_bias_is_added_and_does_not_allow_what_is_forbidden() -> None:
    params = SamplingParams(allowed_token_ids=[4, 1], logit_bias={1: 2.5, 2: 100.0})
    assert edited(params) == [NO, 3.5, NO, NO, 4, NO]


def test_stop_tokens_are_forbidden_until_min_tokens() -> None:
    params, stops = SamplingParams(min_tokens=3), frozenset([0, 5])
    assert edited(params, num_outputs=2, stops=stops) == [NO, 1, 2, 3, 4, NO]
    assert edited(params, num_outputs=3, stops=stops) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("params", "stops", "name"),
    [
        (SamplingParams(allowed_token_ids=[6]), frozenset[int](), "allowed_token_ids"),
        (SamplingParams(logit_bias={-1: 1.0}), frozenset[int](), "logit_bias"),
        (SamplingParams(min_tokens=1), frozenset([9]), "stop_token_ids"),
    ],
)
def test_a_token_id_outside_the_vocabulary_is_refused(params: SamplingParams, stops: frozenset[int], name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as refusal:
        LogitEdits(new_request([1], params, stop_token_ids=stops), vocab_size=6, device=CPU)
    assert refusal.value.param == name


def test_which_requests_have_edits() -> None:
    plain = SamplingParams(stop_token_ids=[3], repetition_penalty=1.2)
    some = [SamplingParams(allowed_token_ids=[1]), SamplingParams(logit_bias={1: 1.0}), SamplingParams(min_tokens=1)]
    assert [has_logit_edits(new_request([1], params)) for params in (plain, *some)] == [False, True, True, True]
