"""The real default model in float32 on the paged runner: tokens and logprobs equal transformers' own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from roundhouse.model_store import load_tokenizer
from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.loader import load_causal_lm, read_config
from roundhouse.protocol.sampling import SamplingParams
from tests.support.runner_driver import RunnerDriver, make_runner

pytestmark = pytest.mark.timeout(400)

PROMPTS = {
    "one token": "a",
    "fact": "The capital of France is",
    "code": "def fibonacci(n):",
    "scripts": "Привет, 日本の首都は 🚂",
    "long": "A roundhouse stands beside the railway, and its turntable serves every track. " * 6,
}
NUM_OUTPUTS = 12
WITH_LOGPROBS = SamplingParams(temperature=0.0, logprobs=0, prompt_logprobs=0)
NEAR_TIE = 1e-3
ATOL = 5e-4


@pytest.fixture(scope="module")
def prompts(smollm2_folder: Path) -> dict[str, list[int]]:
    tokenizer = load_tokenizer(smollm2_folder)
    return {name: tokenizer.encode(text) for name, text in PROMPTS.items()}


@pytest.fixture(scope="module")
def model(smollm2_folder: Path) -> CausalLM:
    return load_causal_lm(
        smollm2_folder, read_config(smollm2_folder), dtype=torch.float32, device=torch.device("cpu"), max_model_len=2048
    )


@pytest.fixture(scope="module")
def reference(smollm2_folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def expected(reference: PreTrainedModel, prompts: dict[str, list[int]]) -> dict[str, list[int]]:
    """Greedy tokens of transformers' own `generate`."""
    outputs: dict[str, list[int]] = {}
    for name, prompt in prompts.items():
        ids = torch.tensor([prompt])
        generated = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NUM_OUTPUTS,
            min_new_tokens=NUM_OUTPUTS,
            eos_token_id=None,
        )
        outputs[name] = generated[0, len(prompt) :].tolist()
    return outputs


def driver(model: CausalLM) -> RunnerDriver:
    return make_runner(model, num_blocks=200, block_size=16)


def reference_logprobs(reference: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(reference(input_ids=torch.tensor([token_ids])).logits[0], dim=-1)


def assert_tokens(outputs: list[int], wanted: list[int], prompt: list[int], reference: PreTrainedModel) -> None:
    """Equal, or first different where the reference's two best are about equal."""
    differ = [place for place, pair in enumerate(zip(outputs, wanted, strict=True)) if pair[0] != pair[1]]
    if differ:
        best = reference_logprobs(reference, prompt + wanted[: differ[0]])[-1].topk(2).values
        assert best[0] - best[1] < NEAR_TIE, f"first difference at output {differ[0]}: {outputs} against {wanted}"


def test_greedy_tokens_alone(
    model: CausalLM, reference: PreTrainedModel, prompts: dict[str, list[int]], expected: dict[str, list[int]]
) -> None:
    for name, prompt in prompts.items():
        alone = driver(model)
        alone.add(name, prompt)
        assert_tokens(alone.run(NUM_OUTPUTS)[name], expected[name], prompt, reference)


@pytest.mark.parametrize("chunk", [10_000, 37])
def test_greedy_tokens_and_logprobs_in_a_batch_and_in_chunks(
    model: CausalLM,
    reference: PreTrainedModel,
    prompts: dict[str, list[int]],
    expected: dict[str, list[int]],
    chunk: int,
) -> None:
    together = driver(model)
    for name, prompt in prompts.items():
        together.add(name, prompt, WITH_LOGPROBS)
    outputs = together.run(NUM_OUTPUTS, chunk=chunk)
    for name, prompt in prompts.items():
        assert_tokens(outputs[name], expected[name], prompt, reference)
        exact = reference_logprobs(reference, prompt + outputs[name]).numpy()
        came = np.array(prompt + outputs[name])[1:, None]
        exact = np.take_along_axis(exact[:-1], came, axis=1)[:, 0]
        in_prompt = next(output.prompt_logprobs[name] for output in together.outputs if name in output.prompt_logprobs)
        after = [output.logprobs[name].logprobs[0][0] for output in together.outputs if name in output.logprobs]
        ours = np.concatenate([in_prompt.logprobs[:, 0], after])
        np.testing.assert_allclose(ours, exact, rtol=0, atol=ATOL)
