from typing import Any

import pytest

from roundhouse.model_store.model_config import DefaultSampling
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.params import check_envelope, check_num_choices, make_sampling_params
from roundhouse.server.schema import CompletionBody, StreamOptions

OF_THE_MODEL = DefaultSampling(temperature=0.2, top_p=0.9, top_k=50, repetition_penalty=1.1)


NONE_OF_THE_MODEL = DefaultSampling()


def params(defaults: DefaultSampling = NONE_OF_THE_MODEL, max_tokens: int | None = 16, **fields: Any) -> SamplingParams:
    body = CompletionBody(prompt="a", **fields)
    return make_sampling_params(body, defaults, vocab_size=100, max_tokens=max_tokens, logprobs=None)


def test_openais_defaults() -> None:
    assert params() == SamplingParams()


def test_the_models_own_defaults_come_before_openais() -> None:
    assert params(OF_THE_MODEL) == SamplingParams(temperature=0.2, top_p=0.9, top_k=50, repetition_penalty=1.1)


def test_the_request_comes_before_the_models_defaults() -> None:
    asked = params(OF_THE_MODEL, temperature=0.0, top_p=1.0, top_k=0, repetition_penalty=1.0)
    assert asked == SamplingParams(temperature=0.0, top_p=1.0, top_k=0, repetition_penalty=1.0)


def test_every_field_arrives() -> None:
    assert params(
        max_tokens=None,
        n=2,
        temperature=0.5,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        seed=5,
        min_tokens=2,
        stop="x",
        stop_token_ids=[4],
        include_stop_str_in_output=True,
        ignore_eos=True,
        logit_bias={1: 200.0, 2: -200.0, 3: 1.5},
        allowed_token_ids=[1, 2],
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
    ) == SamplingParams(
        max_tokens=None,
        n=2,
        temperature=0.5,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        seed=5,
        min_tokens=2,
        stop=["x"],
        stop_token_ids=[4],
        include_stop_str_in_output=True,
        ignore_eos=True,
        logit_bias={1: 100.0, 2: -100.0, 3: 1.5},
        allowed_token_ids=[1, 2],
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
    )


def test_seed_minus_one_is_no_seed() -> None:
    assert params(seed=-1).seed is None


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
def test_ids_outside_the_vocabulary_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        params(**{name: [100]})
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": StreamOptions()}, "stream_options"),
        ({"priority": 2**31}, "priority"),
        ({"priority": -(2**64)}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "a@b"}, "cache_salt"),
        ({"cache_salt": "a\0b"}, "cache_salt"),
        ({"cache_salt": "x" * 129}, "cache_salt"),
    ],
)
def test_the_envelope_is_checked(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_envelope(CompletionBody(prompt="a", **fields))
    assert caught.value.param == param


def test_a_good_envelope_passes() -> None:
    check_envelope(
        CompletionBody(prompt="a", stream=True, stream_options=StreamOptions(), priority=-3, cache_salt="t1")
    )


@pytest.mark.parametrize(
    ("n", "num_prompts", "is_served"),
    [(None, 1, True), (128, 1, True), (129, 1, False), (0, 1, False), (-1, 1, False), (2, 64, True), (2, 65, False)],
)
def test_choices_are_counted_before_anything_is_made_for_them(n: int | None, num_prompts: int, is_served: bool) -> None:
    if is_served:
        check_num_choices(n, num_prompts, 128)
    else:
        with pytest.raises(InvalidRequest) as caught:
            check_num_choices(n, num_prompts, 128)
        assert caught.value.param == "n"
