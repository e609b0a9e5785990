"""Greedy float32 tokens and logprobs equal transformers' own `generate`, however the engine schedules.

A first difference is allowed only where the reference's two likeliest logits are closer than `NEAR_TIE`, for at most
`MOST_NEAR_TIES` prompts; what follows such a difference is another text and is not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from roundhouse.engine.core import EngineCore
from roundhouse.model_store import load_tokenizer
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from tests.support.core_driver import Result, float32_core, run
from tests.support.prompts import varied_prompts

NUM_TOKENS = 12
NEAR_TIE = 1e-3
MOST_NEAR_TIES = 2
LOGPROB_TOLERANCE = 5e-4
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0, seed=0)

pytestmark = pytest.mark.timeout(400)


@dataclass(frozen=True)
class Reference:
    """token_ids, and for each of them its logprob and the gap between the two likeliest logits."""

    token_ids: list[int]
    logprobs: list[float]
    gaps: list[float]


@pytest.fixture(scope="module")
def prompts(smollm2_folder: Path) -> list[list[int]]:
    return varied_prompts(load_tokenizer(smollm2_folder))


@pytest.fixture(scope="module")
def references(smollm2_folder: Path, prompts: list[list[int]]) -> list[Reference]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    found: list[Reference] = []
    for prompt in prompts:
        with torch.inference_mode():
            output = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=NUM_TOKENS,
                min_new_tokens=NUM_TOKENS,
                output_logits=True,
                return_dict_in_generate=True,
                pad_token_id=0,
                eos_token_id=None,
            )
        token_ids = output.sequences[0, len(prompt) :].tolist()
        logits = torch.stack([step[0] for step in output.logits])
        best = logits.topk(2).values
        logprobs = logits.log_softmax(-1)[torch.arange(len(token_ids)), token_ids]
        found.append(Reference(token_ids, logprobs.tolist(), (best[:, 0] - best[:, 1]).tolist()))
    return found


def assert_parity(results: list[Result], references: list[Reference]) -> None:
    near_ties = 0
    for index, (result, reference) in enumerate(zip(results, references, strict=True)):
        assert result.finish_reason is FinishReason.LENGTH
        assert len(result.token_ids) == len(result.logprobs) == NUM_TOKENS
        for place, (token_id, logprob) in enumerate(zip(result.token_ids, result.logprobs, strict=True)):
            if token_id != reference.token_ids[place]:
                assert reference.gaps[place] < NEAR_TIE, f"prompt {index}, token {place}: no near tie"
                near_ties += 1
                break
            assert abs(logprob - reference.logprobs[place]) < LOGPROB_TOLERANCE, f"prompt {index}, token {place}"
    assert near_ties <= MOST_NEAR_TIES


@pytest.fixture(scope="module")
def roomy_core(smollm2_folder: Path) -> EngineCore:
    return float32_core(smollm2_folder)


def test_fifty_prompts_of_many_lengths(prompts: list[list[int]]) -> None:
    lengths = [len(prompt) for prompt in prompts]
    assert len(prompts) == 50
    assert (min(lengths), max(lengths)) == (1, 1500)


def test_alone(roomy_core: EngineCore, prompts: list[list[int]], references: list[Reference]) -> None:
    results = [result for prompt in prompts for result in run(roomy_core, [prompt], PARAMS)]
    assert_parity(results, references)


def test_with_prefix_cache_hits(roomy_core: EngineCore, prompts: list[list[int]], references: list[Reference]) -> None:
    run(roomy_core, prompts, PARAMS)
    results = run(roomy_core, prompts, PARAMS)
    assert [r.num_cached_tokens for r in results] == [(len(p) - 1) // 16 * 16 for p in prompts]
    assert_parity(results, references)


def test_in_a_batch_of_32(smollm2_folder: Path, prompts: list[list[int]], references: list[Reference]) -> None:
    core = float32_core(smollm2_folder, max_num_seqs=32, prefix_caching=False)
    most_running = 0

    def watch() -> None:
        nonlocal most_running
        most_running = max(most_running, core.stats().num_running_reqs)

    assert_parity(run(core, prompts, PARAMS, after_step=watch), references)
    assert most_running == 32


def test_with_chunked_prefill(smollm2_folder: Path, prompts: list[list[int]], references: list[Reference]) -> None:
    core = float32_core(smollm2_folder, max_num_batched_tokens=96, prefix_caching=False)
    assert_parity(run(core, prompts, PARAMS, after_step=core.scheduler.validate_state), references)
    assert core.stats().num_steps_total > sum(map(len, prompts)) / 96


def test_under_preemption_with_a_tiny_pool(
    smollm2_folder: Path, prompts: list[list[int]], references: list[Reference]
) -> None:
    """A block is 4 tokens, so that growing needs blocks often; the pool holds little more than the longest prompt."""
    core = float32_core(smollm2_folder, block_size=4, num_blocks=(1500 + NUM_TOKENS) // 4 + 4, prefix_caching=False)
    assert_parity(run(core, prompts, PARAMS, after_step=core.scheduler.validate_state), references)
    assert core.stats().num_preemptions_total > 0
    assert core.stats().kv_cache_usage == 0.0
