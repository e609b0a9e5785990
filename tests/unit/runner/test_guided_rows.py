"""A grammar follows its request through chunks, preemption and from one engine to the next."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.loader import wrap_module
from roundhouse.protocol.sampling import SamplingParams, StructuredOutputsParams
from roundhouse.runner.guided_rows import NOT_OF_THE_GRAMMAR
from tests.support.byte_vocabulary import EOS, byte_compiler
from tests.support.runner_driver import GREEDY, RunnerDriver, make_runner
from tests.support.tiny_models import MAX_MODEL_LEN, VOCAB_SIZE, tiny_model

NUMBER = StructuredOutputsParams(regex="[0-9]{3}(-[0-9]{2})*")
DRAWN = SamplingParams(temperature=1.0, seed=1, structured_outputs=NUMBER)
COMPILER = byte_compiler(VOCAB_SIZE)


@cache
def model() -> CausalLM:
    return wrap_module(tiny_model("llama"), max_model_len=MAX_MODEL_LEN)


def driver() -> RunnerDriver:
    return make_runner(model(), compiler=COMPILER)


@cache
def alone(child_index: int = 0) -> list[int]:
    one = driver()
    one.add("a", [5, 6, 7], DRAWN, seed=9, child_index=child_index)
    return one.run(9)["a"]


def test_the_answer_is_of_the_grammar_and_others_are_left_alone() -> None:
    free = driver()
    free.add("free", [3, 1, 4], GREEDY)
    expected = free.run(9)["free"]
    both = driver()
    both.add("a", [5, 6, 7], DRAWN, seed=9)
    both.add("free", [3, 1, 4], GREEDY)
    assert both.run(9, chunk=2) == {"a": alone(), "free": expected}
    text = bytes(alone()).split(bytes([EOS]))[0]
    assert COMPILER.compile(NUMBER).validate_tokens(list(text)) == len(text)
    assert text[:3].isdigit()


@given(k=st.integers(0, 9), child_index=st.integers(0, 2))
@settings(max_examples=20)
def test_another_engine_goes_on_behind_any_token(k: int, child_index: int) -> None:
    outputs = alone(child_index)
    if EOS in outputs[:k]:
        return
    other = driver()
    other.add("a", [5, 6, 7, *outputs[:k]], DRAWN, seed=9, child_index=child_index, num_outputs=k)
    assert other.run(9)["a"] == outputs


def test_outputs_that_are_not_of_the_grammar_fail_their_request_alone() -> None:
    both = driver()
    both.add("a", [5, 6, 7, 99], DRAWN, num_outputs=1)
    both.add("b", [5, 6, 7], DRAWN, seed=9)
    both.step({"a": 4, "b": 3})
    assert both.outputs[-1].failed == {"a": NOT_OF_THE_GRAMMAR}
    assert both.outputs[-1].sampled_token_ids == {"b": alone()[:1]}


@pytest.mark.parametrize("more", [{"min_tokens": 8}, {"logit_bias": {EOS: -100.0}}, {"allowed_token_ids": [52, 57]}])
def test_where_the_grammar_is_over_the_request_ends_whatever_else_was_wished(more: dict[str, object]) -> None:
    one = driver()
    params = SamplingParams(temperature=0.0, structured_outputs=StructuredOutputsParams(regex="[4-9]"), **more)  # pyright: ignore[reportArgumentType]
    one.add("a", [5], params, stop_token_ids=frozenset([EOS]))
    token_ids = one.run(2)["a"]
    assert (token_ids[0] in range(52, 58), token_ids[1]) == (True, EOS)
    assert [output.ended for output in one.outputs] == [[], ["a"]]


def test_logprobs_are_of_what_the_grammar_allows() -> None:
    one = driver()
    params = SamplingParams(temperature=0.0, logprobs=2, structured_outputs=StructuredOutputsParams(choice=["4", "7"]))
    one.add("a", [5], params)
    one.run(1)
    row = one.outputs[0].logprobs["a"]
    assert sorted(row.token_ids[0][1:]) == [ord("4"), ord("7")]
    assert sum(2.718281828**value for value in row.logprobs[0][1:]) == pytest.approx(1.0, abs=1e-4)
