"""Any transformers causal LM: paged logits equal the model's own eager forward pass, whatever the steps."""

import numpy as np
import pytest
import torch

from roundhouse.models.loader import wrap_module
from roundhouse.protocol.sampling import SamplingParams
from tests.support.runner_driver import make_runner
from tests.support.tiny_models import CONFIGS, MAX_MODEL_LEN, VOCAB_SIZE, tiny_model

ALL_LOGPROBS = SamplingParams(temperature=0.0, logprobs=VOCAB_SIZE, prompt_logprobs=VOCAB_SIZE)
PROMPTS = {"short": [5], "middle": list(range(3, 14)), "long": [(7 * place) % VOCAB_SIZE for place in range(37)]}
NUM_OUTPUTS = 9


def dense(token_ids: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
    """[n, vocab] logprobs by token id, from rows of (the token that came, all tokens by likelihood)."""
    by_id = np.zeros((len(token_ids), VOCAB_SIZE), dtype=np.float32)
    np.put_along_axis(by_id, token_ids[:, 1:].astype(np.int64), logprobs[:, 1:], axis=1)
    return by_id


def reference_logprobs(model: torch.nn.Module, token_ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([token_ids]), use_cache=False).logits[0]
    return torch.log_softmax(logits.float(), dim=-1).numpy()


@pytest.mark.parametrize("chunk", [1000, 5, 1], ids=["whole prompts", "chunks of 5", "one token a step"])
@pytest.mark.parametrize("family", CONFIGS)
def test_logprobs_of_prompt_chunks_and_decode_equal_the_eager_forward(family: str, chunk: int) -> None:
    driver = make_runner(wrap_module(tiny_model(family), max_model_len=MAX_MODEL_LEN))
    for name, prompt in PROMPTS.items():
        driver.add(name, prompt, ALL_LOGPROBS)

    driver.run(NUM_OUTPUTS, chunk=chunk)

    reference = tiny_model(family, paged=False)
    for name, prompt in PROMPTS.items():
        expected = reference_logprobs(reference, driver.token_ids[name])
        in_prompt = next(output.prompt_logprobs[name] for output in driver.outputs if name in output.prompt_logprobs)
        np.testing.assert_allclose(
            dense(in_prompt.token_ids, in_prompt.logprobs), expected[: len(prompt) - 1], rtol=0, atol=2e-4
        )
        lists = [output.logprobs[name] for output in driver.outputs if name in output.logprobs]
        rows = np.array([one.token_ids[0] for one in lists]), np.array([one.logprobs[0] for one in lists])
        np.testing.assert_allclose(dense(*rows), expected[len(prompt) - 1 : -1], rtol=0, atol=2e-4)
        assert driver.output_ids(name) == expected[len(prompt) - 1 : -1].argmax(axis=1).tolist()
