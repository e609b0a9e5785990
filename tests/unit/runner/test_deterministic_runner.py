"""A request's tokens and logprobs are bitwise those of its undisturbed run, whatever else its steps hold."""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.loader import wrap_module
from roundhouse.protocol.messages import LogprobsLists
from roundhouse.protocol.sampling import SamplingParams
from tests.support.runner_driver import RunnerDriver
from tests.support.tiled_runner import make_tiled_runner
from tests.support.tiny_models import MAX_MODEL_LEN, VOCAB_SIZE, tiny_model

FAMILIES = [
    "llama",
    "qwen2",
    "qwen3",
    "mistral-sliding",
    "gemma3-sliding",
    "gpt2",
    "phi3",
    "granite-logit-scaling",
    "cohere-logit-scale",
]
PROMPT = [(7 * place + 3) % VOCAB_SIZE for place in range(45)]
NUM_OUTPUTS = 10
SEED = 11
ALL = VOCAB_SIZE
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, logprobs=ALL),
    "drawn": SamplingParams(temperature=0.9, top_p=0.95, presence_penalty=0.4, frequency_penalty=0.2, logprobs=ALL),
}
MATES = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.0, logprobs=3),
    SamplingParams(temperature=1.5, top_k=20, logit_bias={5: 1.5}),
    SamplingParams(temperature=1.0, repetition_penalty=1.3, min_tokens=3),
]


@cache
def model(family: str, dtype: torch.dtype) -> CausalLM:
    return wrap_module(tiny_model(family).to(dtype), max_model_len=MAX_MODEL_LEN)


def rows_of(driver: RunnerDriver, name: str) -> list[LogprobsLists]:
    return [output.logprobs[name] for output in driver.outputs if name in output.logprobs]


@cache
def undisturbed(family: str, dtype: torch.dtype, params: str) -> tuple[list[int], list[LogprobsLists]]:
    driver = make_tiled_runner(model(family, dtype))
    driver.add("subject", PROMPT, PARAMS[params], seed=SEED)
    return driver.run(NUM_OUTPUTS)["subject"], rows_of(driver, "subject")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8)
@given(
    params=st.sampled_from(sorted(PARAMS)),
    resumed_after=st.integers(0, NUM_OUTPUTS - 1),
    num_mates=st.integers(0, 40),
    chunk=st.integers(1, 64),
    preempted_in=st.sets(st.integers(0, 20), max_size=2),
    dice=st.randoms(use_true_random=False),
)
def test_tokens_and_logprobs_in_any_company(
    family: str,
    dtype: torch.dtype,
    params: str,
    resumed_after: int,
    num_mates: int,
    chunk: int,
    preempted_in: set[int],
    dice: random.Random,
) -> None:
    token_ids, rows = undisturbed(family, dtype, params)
    driver = make_tiled_runner(model(family, dtype))
    delivered = token_ids[:resumed_after]
    names = ["subject", *(f"mate {index}" for index in range(num_mates))]
    dice.shuffle(names)
    for name in names:
        if name == "subject":
            driver.add(name, PROMPT + delivered, PARAMS[params], seed=SEED, num_outputs=resumed_after)
        else:
            prompt = [dice.randrange(VOCAB_SIZE) for _ in range(dice.randint(1, 40))]
            driver.add(name, prompt, dice.choice(MATES), seed=dice.randrange(2**32))

    for step in range(1000):
        if len(driver.output_ids("subject")) == NUM_OUTPUTS:
            break
        if step in preempted_in:
            driver.preempt("subject")
        driver.step_all(chunk=dice.randint(1, chunk))
        for name in [name for name in names if name in driver.num_left() and name != "subject"]:
            if dice.random() < 0.05 or len(driver.token_ids[name]) > MAX_MODEL_LEN - 2:
                driver.finish(name)

    assert driver.output_ids("subject") == token_ids
    assert rows_of(driver, "subject") == rows[resumed_after:]


@pytest.mark.parametrize("chunk", [1, 5, 32, 44])
def test_logprobs_of_a_prompt_in_chunks(chunk: int) -> None:
    params = SamplingParams(temperature=0.0, prompt_logprobs=5)
    found = []
    for size in (1000, chunk):
        driver = make_tiled_runner(model("llama", torch.bfloat16))
        driver.add("subject", PROMPT, params)
        driver.run(1, chunk=size)
        found.append(next(iter(driver.outputs[-1].prompt_logprobs.values())))
    whole, in_chunks = found
    assert in_chunks.token_ids.tolist() == whole.token_ids.tolist()
    assert in_chunks.logprobs.tolist() == whole.logprobs.tolist()
    assert in_chunks.ranks.tolist() == whole.ranks.tolist()
