"""A request's tokens do not depend on who shares its steps, on chunks or on preemption; its faults are its own."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.loader import wrap_module
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.model_runner import NO_TOKEN_POSSIBLE, PROMPT_LOGPROBS_FAILED, SAMPLER_FAILED
from roundhouse.runner.prompt_logprobs import PromptLogprobsRow
from roundhouse.runner.sampler import SamplerOutput, sample
from roundhouse.runner.sampling_rows import SamplingRows
from roundhouse.scheduler.step import ModelRunnerOutput, NewRequest, SchedulerOutput
from tests.support.runner_driver import GREEDY, RunnerDriver, make_runner
from tests.support.tiny_models import MAX_MODEL_LEN, VOCAB_SIZE, tiny_model

DRAWN = SamplingParams(temperature=0.9, top_p=0.95, seed=1)
MIXED = {
    "greedy": ([3, 1, 4, 1, 5, 9, 2, 6], GREEDY),
    "drawn": ([2, 7, 1, 8, 2, 8], DRAWN),
    "free": ([10], SamplingParams(temperature=1.5)),
    "penalized": ([5] * 12, SamplingParams(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.4)),
    "edited": ([9, 9], SamplingParams(temperature=0.0, min_tokens=4, logit_bias={7: 2.0})),
}
NUM_OUTPUTS = 8


@cache
def model() -> CausalLM:
    return wrap_module(tiny_model("llama"), max_model_len=MAX_MODEL_LEN)


def driver(**config: int) -> RunnerDriver:
    return make_runner(model(), **config)


def add(to: RunnerDriver, name: str) -> None:
    prompt, params = MIXED[name]
    to.add(name, prompt, params, seed=len(name), stop_token_ids=frozenset([2]))


@cache
def alone(name: str) -> list[int]:
    one = driver()
    add(one, name)
    return one.run(NUM_OUTPUTS)[name]


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_tokens_in_a_batch_and_in_chunks_equal_those_alone(chunk: int) -> None:
    together = driver()
    for name in MIXED:
        add(together, name)
    assert together.run(NUM_OUTPUTS, chunk=chunk) == {name: alone(name) for name in MIXED}


@settings(max_examples=25)
@given(data=st.data())
def test_tokens_under_preemption_equal_those_alone(data: st.DataObject) -> None:
    together = driver()
    for name in MIXED:
        add(together, name)
    for _ in range(data.draw(st.integers(1, 12))):
        plan = {name: data.draw(st.integers(0, count)) for name, count in together.num_left().items()}
        together.step({name: count for name, count in plan.items() if count})
        victim = data.draw(st.sampled_from([None, *MIXED]))
        if victim is not None:
            together.preempt(victim)
    outputs = together.run(NUM_OUTPUTS, chunk=4)
    assert {name: tokens[:NUM_OUTPUTS] for name, tokens in outputs.items()} == {name: alone(name) for name in MIXED}


def test_resumed_outputs_count_as_outputs() -> None:
    resumed = driver()
    for name, (prompt, params) in MIXED.items():
        outputs = alone(name)[:3]
        fields = {"seed": len(name), "stop_token_ids": frozenset([2]), "num_outputs": len(outputs)}
        resumed.add(name, prompt + outputs, params, **fields)
    assert resumed.run(NUM_OUTPUTS) == {name: alone(name) for name in MIXED}


def test_a_step_that_completes_no_prompt_samples_nothing() -> None:
    one = driver()
    add(one, "greedy")
    assert one.step({"greedy": 5}) == ModelRunnerOutput(sampled_token_ids={})


def test_a_step_without_tokens_drops_what_is_finished() -> None:
    one = driver(max_num_seqs=1)
    add(one, "greedy")
    one.step_all()
    one.finish("greedy")
    assert one.runner.execute_model(SchedulerOutput([], {}, finished=["greedy", "never came"])) == ModelRunnerOutput({})
    add(one, "drawn")
    assert one.run(NUM_OUTPUTS) == {"drawn": alone("drawn")}


def test_logprobs_are_of_those_that_asked() -> None:
    two = driver()
    two.add("asks", [1, 2, 3], SamplingParams(temperature=0.0, logprobs=1))
    two.add("does not", [1, 2, 3])
    output = two.step_all()
    token_ids = output.sampled_token_ids["asks"]
    lists = output.logprobs["asks"]
    assert (list(output.logprobs), lists.token_ids, lists.ranks) == (["asks"], [token_ids * 2], [1])


def test_prompt_logprobs_come_once_and_not_again_after_preemption() -> None:
    one = driver()
    one.add("a", list(range(20)), SamplingParams(temperature=0.0, prompt_logprobs=2))
    one.step({"a": 7})
    one.preempt("a")
    one.step({"a": 15})
    output = one.step({"a": 5})
    rows = output.prompt_logprobs["a"]
    assert (rows.token_ids.shape, rows.logprobs.shape, rows.ranks.shape) == ((19, 3), (19, 3), (19,))
    assert rows.token_ids[:, 0].tolist() == list(range(1, 20))
    one.preempt("a")
    assert one.step_all().prompt_logprobs == {}


def test_a_prompt_of_one_token_has_no_prompt_logprobs_to_tell() -> None:
    one = driver()
    one.add("a", [4], SamplingParams(temperature=0.0, prompt_logprobs=2))
    assert one.step_all().prompt_logprobs["a"].token_ids.shape == (0, 3)


def test_a_parameter_outside_the_vocabulary_fails_its_own_request() -> None:
    two = driver()
    add(two, "greedy")
    two.add("bad", [1, 2], SamplingParams(temperature=0.0, logit_bias={VOCAB_SIZE: 1.0}))
    output = two.step_all()
    assert output == ModelRunnerOutput(
        sampled_token_ids={"greedy": alone("greedy")[:1]},
        failed={"bad": f"logit_bias names a token id outside the vocabulary of {VOCAB_SIZE}"},
    )
    two.finish("bad")
    assert two.run(NUM_OUTPUTS)["greedy"] == alone("greedy")


def test_a_request_that_forbids_every_token_fails_alone() -> None:
    two = driver()
    add(two, "drawn")
    two.add("bad", [1], SamplingParams(allowed_token_ids=[2], min_tokens=1), stop_token_ids=frozenset([2]))
    output = two.step_all()
    assert output == ModelRunnerOutput({"drawn": alone("drawn")[:1]}, failed={"bad": NO_TOKEN_POSSIBLE})


def test_not_a_number_in_one_request_reaches_no_other_even_through_its_blocks() -> None:
    module = tiny_model("llama")
    poison = VOCAB_SIZE - 1
    with torch.no_grad():
        module.get_input_embeddings().weight[poison] = float("nan")
    few_blocks = make_runner(wrap_module(module, max_model_len=MAX_MODEL_LEN), num_blocks=8)
    add(few_blocks, "greedy")
    few_blocks.add("bad", [1, 2, 3, 4, 5, poison, 7])
    output = few_blocks.step_all()
    assert output == ModelRunnerOutput({"greedy": alone("greedy")[:1]}, failed={"bad": NO_TOKEN_POSSIBLE})
    few_blocks.finish("bad")
    add(few_blocks, "drawn")
    outputs = few_blocks.run(NUM_OUTPUTS)
    assert outputs == {"greedy": alone("greedy"), "drawn": alone("drawn")}


def test_tokens_beyond_the_tokenizers_vocabulary_are_never_sampled() -> None:
    narrow = driver(vocab_size=5)
    for index in range(6):
        narrow.add(f"{index}", [index], SamplingParams(temperature=2.0), seed=index)
    outputs = narrow.run(20)
    assert set(np.concatenate(list(outputs.values())).tolist()) <= set(range(5))


def test_a_sampler_that_chokes_on_one_request_fails_that_one(caplog: pytest.LogCaptureFixture) -> None:
    """The step is sampled again without the edits of the first try: the others get the tokens that they get alone."""

    def choking(logits: torch.Tensor, rows: np.ndarray, num_outputs: np.ndarray, params: SamplingRows) -> SamplerOutput:
        sampled = sample(logits, rows, num_outputs, params)
        if 1 in rows:
            raise ZeroDivisionError("row 1")
        return sampled

    together = make_runner(model(), sample=choking)
    names = ["edited", "drawn", "greedy"]
    for name in names:
        add(together, name)
    result = together.step({name: len(MIXED[name][0]) for name in names})
    assert result.failed == {"drawn": SAMPLER_FAILED}
    assert result.sampled_token_ids == {name: alone(name)[:1] for name in ("edited", "greedy")}
    assert "the sampler failed on one request" in caplog.text


def test_parameters_that_the_sampler_cannot_take_fail_their_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    add_as_before = SamplingRows.add

    def choking(self: SamplingRows, row: int, request: NewRequest) -> None:
        if request.seed == 13:
            raise ZeroDivisionError("seed 13")
        add_as_before(self, row, request)

    monkeypatch.setattr(SamplingRows, "add", choking)
    two = driver()
    add(two, "greedy")
    two.add("bad", [1, 2], seed=13)
    assert two.step_all() == ModelRunnerOutput({"greedy": alone("greedy")[:1]}, failed={"bad": SAMPLER_FAILED})
    two.finish("bad")
    assert two.run(NUM_OUTPUTS)["greedy"] == alone("greedy")


@pytest.mark.parametrize("chunk", [3, 20])
def test_prompt_logprobs_that_cannot_be_computed_fail_their_own_request(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choking(self: PromptLogprobsRow, *args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(PromptLogprobsRow, "add_chunk", choking)
    two = driver()
    add(two, "greedy")
    two.add("bad", list(range(20)), SamplingParams(temperature=0.0, prompt_logprobs=2))
    output = two.step({"greedy": len(MIXED["greedy"][0]), "bad": chunk})
    assert output == ModelRunnerOutput({"greedy": alone("greedy")[:1]}, failed={"bad": PROMPT_LOGPROBS_FAILED})
    two.finish("bad")
    assert two.run(NUM_OUTPUTS)["greedy"] == alone("greedy")
