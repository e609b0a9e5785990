import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.penalties import SeenTokens, apply_penalties

VOCAB_SIZE = 12
TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30)


def naive(logits: np.ndarray, params: SamplingParams, prompt: list[int], outputs: list[int]) -> np.ndarray:
    out = logits.copy()
    for token_id in range(VOCAB_SIZE):
        if token_id in prompt or token_id in outputs:
            scale = params.repetition_penalty
            out[token_id] = out[token_id] / scale if out[token_id] > 0 else out[token_id] * scale
        count = outputs.count(token_id)
        out[token_id] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return out


@settings(max_examples=100)
@given(
    prompts=st.lists(TOKENS, min_size=2, max_size=2),
    outputs=st.lists(TOKENS, min_size=2, max_size=2),
    split=st.integers(0, 30),
    repetition=st.sampled_from([0.5, 1.0, 1.3]),
    presence=st.sampled_from([-1.0, 0.0, 0.5]),
    frequency=st.sampled_from([-0.5, 0.0, 0.25]),
)
def test_penalties_equal_the_formula_however_the_outputs_came(
    prompts: list[list[int]],
    outputs: list[list[int]],
    split: int,
    repetition: float,
    presence: float,
    frequency: float,
) -> None:
    params = SamplingParams(repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency)
    seen = []
    for prompt, came in zip(prompts, outputs, strict=True):
        one = SeenTokens(params, prompt, came[:split])
        for token_id in came[split:]:
            one.append(token_id)
        seen.append(one)
    logits = torch.linspace(-3, 3, 3 * VOCAB_SIZE).reshape(3, VOCAB_SIZE)
    expected = logits.numpy().copy()
    for place, prompt, came in zip((0, 2), prompts, outputs, strict=True):
        expected[place] = naive(expected[place], params, prompt, came)

    apply_penalties(logits, [0, 2], seen)

    np.testing.assert_allclose(logits.numpy(), expected, rtol=1e-6, atol=1e-6)


def test_a_forbidden_token_stays_forbidden() -> None:
    logits = torch.full((1, VOCAB_SIZE), float("-inf"))
    apply_penalties(logits, [0], [SeenTokens(SamplingParams(repetition_penalty=2.0), [1, 2], [3])])
    assert logits.tolist() == [[float("-inf")] * VOCAB_SIZE]


def test_counts_are_kept_by_distinct_token() -> None:
    seen = SeenTokens(SamplingParams(repetition_penalty=1.1), [5, 6, 5], [6, 7])
    seen.append(7)
    assert (seen.token_ids.tolist(), seen.output_counts.tolist()) == ([5, 6, 7], [0, 1, 2])


def test_the_prompt_counts_for_repetition_alone() -> None:
    seen = SeenTokens(SamplingParams(presence_penalty=1.0), [5, 6], [7])
    assert (seen.token_ids.tolist(), seen.output_counts.tolist()) == ([7], [1])
