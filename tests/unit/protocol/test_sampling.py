import math

import pytest

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.limits import MAX_TOKEN_ID
from roundhouse.protocol.sampling import FinishReason, SamplingParams

WRONG = {
    "temperature": [-0.1, 2.1, math.nan, math.inf],
    "top_p": [0.0, 1.01, math.nan],
    "top_k": [-2, MAX_TOKEN_ID + 1],
    "min_p": [-0.1, 1.1, math.nan],
    "presence_penalty": [-2.1, 2.1, math.nan],
    "frequency_penalty": [-2.1, 2.1, math.inf],
    "repetition_penalty": [0.0, -1.0, 101.0, math.nan],
    "seed": [2**64, -(2**63) - 1],
    "n": [0, 129],
    "max_tokens": [0, -1],
    "min_tokens": [-1, 17],
    "logprobs": [-1, 21],
    "prompt_logprobs": [-1, 21],
    "stop": [[""], ["x"] * 5, ["x" * 1025]],
    "stop_token_ids": [[-1], [100], list(range(100)) * 2],
    "logit_bias": [{100: 1.0}, {-1: 1.0}, {1: math.nan}, dict.fromkeys(range(1025), 0.0)],
    "allowed_token_ids": [[], [100]],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value}).verify(vocab_size=100)
    assert caught.value.param == field


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0, top_p=1.0, top_k=-1),
        SamplingParams(temperature=2.0, seed=2**64 - 1, n=128),
        SamplingParams(seed=-(2**63), max_tokens=None, min_tokens=1000),
        SamplingParams(stop=["a"] * 4, stop_token_ids=[0, 99], logit_bias={99: -100.0}, allowed_token_ids=[5]),
        SamplingParams(logprobs=20, prompt_logprobs=0),
    ],
)
def test_the_edges_of_the_range_are_in(params: SamplingParams) -> None:
    params.verify(vocab_size=100)


def test_what_does_not_go_together() -> None:
    with pytest.raises(InvalidRequest, match="n must be 1 with temperature 0"):
        SamplingParams(n=2, temperature=0.0).verify()
    with pytest.raises(InvalidRequest, match="stop strings need detokenize"):
        SamplingParams(stop=["x"], detokenize=False).verify()


def test_finish_reasons_are_those_of_the_wire() -> None:
    assert {str(reason): int(reason) for reason in FinishReason} == {
        "stop": 0,
        "length": 1,
        "abort": 2,
        "error": 3,
        "repetition": 4,
    }


def test_one_stop_string_is_a_list_of_one_and_none_is_nothing() -> None:
    params = SamplingParams(stop="Observation:", stop_token_ids=None, logit_bias=None)  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (["Observation:"], [], {})
    assert SamplingParams(stop=None).stop == []  # type: ignore[arg-type]
    params.verify()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "a"),
        ("temperature", None),
        ("max_tokens", "3"),
        ("n", 1.5),
        ("seed", "a"),
        ("stop", [1]),
        ("stop_token_ids", ["a"]),
        ("logit_bias", {"1": 1.0}),
        ("ignore_eos", "yes"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}: expected") as caught:
        SamplingParams(**{name: value}).verify()
    assert caught.value.param == name
