"""What becomes of a prompt and its params, and everything that is refused before an engine hears of it."""

from dataclasses import replace

import msgspec
import pytest

from roundhouse.frontend.input_processor import InputProcessor
from roundhouse.protocol import limits
from roundhouse.protocol.errors import ContextLengthExceeded, EngineGenerateError, InvalidRequest
from roundhouse.protocol.messages import EngineCoreRequest, PoolingParams
from roundhouse.protocol.sampling import SamplingParams
from tests.support.faulty_tokenizer import FAULTS, BackendThatFails
from tests.support.small_tokenizers import byte_level, ids_of

TOKENIZER = byte_level()
END, EXTRA_END = ids_of(TOKENIZER, "<|end|>", "<|extra_end|>")
PADDING = TOKENIZER.model_vocab_size - 1
MAX_LEN = 32


def random_bits(count):
    return 2**count - 1


def requests(prompt, params=None, *, tokenization_kwargs=None, pooling_tasks=frozenset(), **options):
    processor = InputProcessor(TOKENIZER, random_bits, pooling_tasks=pooling_tasks)
    parsed = processor.parse(prompt, params or SamplingParams(), tokenization_kwargs, MAX_LEN)
    token_ids = processor.tokenize(parsed)
    return processor.make_requests("id", parsed, token_ids, max_model_len=MAX_LEN, arrival_time=5.0, **options)


def test_a_whole_request():
    params = SamplingParams(stop=["x"], stop_token_ids=[7], max_tokens=None, min_tokens=2)
    assert requests({"prompt": "Hi", "cache_salt": "tenant"}, params, priority=3, data_parallel_rank=1) == [
        EngineCoreRequest(
            request_id="id",
            prompt_token_ids=TOKENIZER.encode("Hi"),
            sampling_params=SamplingParams(
                stop_token_ids=[7, EXTRA_END], max_tokens=MAX_LEN - 2, min_tokens=2, seed=2**64 - 1
            ),
            arrival_time=5.0,
            eos_token_id=END,
            priority=3,
            cache_salt="tenant",
            data_parallel_rank=1,
        )
    ]


@pytest.mark.parametrize("prompt", ["Hi", [72, 105], {"prompt_token_ids": (72, 105)}, {"prompt": "Hi"}])
def test_forms_of_a_prompt(prompt):
    expected = TOKENIZER.encode("Hi") if "Hi" in str(prompt) else [72, 105]
    assert requests(prompt)[0].prompt_token_ids == expected


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (SamplingParams(max_tokens=4), {"max_tokens": 4}),
        (SamplingParams(max_tokens=MAX_LEN), {"max_tokens": MAX_LEN - 2}),
        (SamplingParams(max_tokens=MAX_LEN, min_tokens=MAX_LEN), {"min_tokens": MAX_LEN - 2}),
        (SamplingParams(seed=0), {"seed": 0}),
        (SamplingParams(seed=-1), {"seed": 2**64 - 1}),
        (SamplingParams(seed=-5), {"seed": 2**64 - 5}),
        (SamplingParams(ignore_eos=True), {"stop_token_ids": []}),
        (SamplingParams(stop_token_ids=[EXTRA_END]), {"stop_token_ids": [EXTRA_END]}),
    ],
)
def test_what_an_engine_gets_of_the_params(given, sent):
    params = requests("Hi", given)[0].sampling_params
    assert {name: getattr(params, name) for name in sent} == sent


def test_choices_differ_by_id_and_index_and_ask_for_the_prompts_logprobs_once():
    first, second = requests("Hi", SamplingParams(n=2, prompt_logprobs=1, seed=9))
    assert (first.request_id, first.child_index, second.request_id, second.child_index) == ("0_id", 0, "1_id", 1)
    assert first.sampling_params is not None
    assert first.sampling_params.prompt_logprobs == 1
    assert second == msgspec.structs.replace(
        first,
        request_id="1_id",
        child_index=1,
        sampling_params=msgspec.structs.replace(first.sampling_params, prompt_logprobs=None),
    )


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ({}, "prompt"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "prompt"),
        ([-1], "prompt"),
        ([TOKENIZER.model_vocab_size], "prompt"),
        ([2**63], "prompt"),
        ([True], "prompt"),
        ([1.0], "prompt"),
        (["a"], "prompt"),
        (7, "prompt"),
        (None, "prompt"),
        ("\ud800", "prompt"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "a", "cache_salt": "x" * (limits.MAX_CACHE_SALT_CHARS + 1)}, "cache_salt"),
        ({"prompt": "a", "cache_salt": 1}, "cache_salt"),
    ],
)
def test_a_prompt_that_is_none(prompt, param):
    with pytest.raises(InvalidRequest) as caught:
        requests(prompt)
    assert caught.value.param == param


def test_padding_ids_of_the_weights_are_no_tokens():
    """The engine never samples one and refuses them too."""
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        requests([PADDING])


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (SamplingParams(n=0), "n"),
        (SamplingParams(n=10**9), "n"),
        (SamplingParams(n=2, temperature=0.0), "n"),
        (SamplingParams(max_tokens=0), "max_tokens"),
        (SamplingParams(temperature=float("nan")), "temperature"),
        (SamplingParams(logit_bias={PADDING: 1.0}), "logit_bias"),
        (SamplingParams(stop_token_ids=[PADDING]), "stop_token_ids"),
        (PoolingParams(), "task"),
    ],
)
def test_params_that_are_refused(params, param):
    with pytest.raises(InvalidRequest) as caught:
        requests("Hi", params)
    assert caught.value.param == param


def test_unknown_tokenization_options_are_refused():
    with pytest.raises(InvalidRequest, match="add_special_tokens"):
        requests("Hi", tokenization_kwargs={"truncation": True})


@pytest.mark.parametrize(
    ("prompt", "params", "given"),
    [
        ([1] * MAX_LEN, SamplingParams(), f"{MAX_LEN} tokens"),
        ("a" * (MAX_LEN * limits.MAX_CHARS_PER_TOKEN + 1), SamplingParams(), "1025 characters"),
        ("Hi", SamplingParams(max_tokens=MAX_LEN + 1), f"max_tokens is {MAX_LEN + 1}"),
    ],
)
def test_what_does_not_fit_is_told_with_both_numbers(prompt, params, given):
    with pytest.raises(ContextLengthExceeded) as caught:
        requests(prompt, params)
    assert caught.value.message.startswith(f"This model's maximum context length is {MAX_LEN} tokens.")
    assert given in caught.value.message


def test_the_longest_prompt_leaves_room_for_one_token():
    params = requests([1] * (MAX_LEN - 1), SamplingParams(max_tokens=None))[0].sampling_params
    assert params is not None
    assert params.max_tokens == 1


def test_pooling_where_it_is_served():
    request = requests([1] * MAX_LEN, PoolingParams(task="embed"), pooling_tasks=frozenset({"embed"}))[0]
    assert (request.sampling_params, request.pooling_params) == (None, PoolingParams(task="embed"))


def test_min_tokens_needs_a_token_that_does_not_stop():
    params = SamplingParams(allowed_token_ids=[5, 6], stop_token_ids=[5, 6], min_tokens=2)
    with pytest.raises(InvalidRequest, match="stop tokens only") as caught:
        requests("Hi", params)
    assert caught.value.param == "allowed_token_ids"
    assert requests("Hi", SamplingParams(allowed_token_ids=[5, 7], stop_token_ids=[5], min_tokens=2))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tokenizer_that_breaks_is_an_error_of_the_request(fault):
    broken = replace(TOKENIZER, backend=BackendThatFails(FAULTS[fault]))
    processor = InputProcessor(broken, random_bits)
    parsed = processor.parse("Hi", SamplingParams(), None, MAX_LEN)
    with pytest.raises(EngineGenerateError, match="could not be tokenized"):
        processor.tokenize(parsed)
