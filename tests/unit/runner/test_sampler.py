import numpy as np
import torch

from roundhouse.protocol.messages import LogprobsLists
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.sampler import SamplerOutput, sample
from roundhouse.runner.sampling_rows import SamplingRows
from tests.support.runner_driver import new_request

VOCAB_SIZE = 8
GREEDY = SamplingParams(temperature=0.0)


def rows_of(*requests: SamplingParams, outputs: list[int] | None = None, seed: int = 0) -> SamplingRows:
    rows = SamplingRows(max_num_seqs=len(requests), vocab_size=VOCAB_SIZE, device=torch.device("cpu"))
    for row, params in enumerate(requests):
        tokens = [1, *(outputs or [])]
        stops = frozenset([7])
        rows.add(row, new_request(tokens, params, num_outputs=len(tokens) - 1, seed=seed, stop_token_ids=stops))
    return rows


def run(logits: list[list[float]], *requests: SamplingParams, outputs: list[int] | None = None) -> SamplerOutput:
    places = np.arange(len(requests))
    num_outputs = np.full(len(requests), len(outputs or []))
    return sample(torch.tensor(logits), places, num_outputs, rows_of(*requests, outputs=outputs))


RISING = [float(value) for value in range(VOCAB_SIZE)]


def test_greedy_takes_the_highest_and_the_first_of_equals() -> None:
    equal = [0.0, 5.0, 5.0, 1.0, 5.0, 0.0, 0.0, 0.0]
    output = run([RISING, equal], GREEDY, GREEDY)
    assert (output.token_ids.tolist(), output.is_valid.tolist(), output.logprobs) == ([7, 1], [True, True], {})


def test_each_parameter_does_its_part() -> None:
    cases = {
        "min_tokens": (SamplingParams(temperature=0.0, min_tokens=2), 6),
        "allowed": (SamplingParams(temperature=0.0, allowed_token_ids=[2, 3]), 3),
        "bias": (SamplingParams(temperature=0.0, logit_bias={0: 7.5}), 0),
        "repetition": (SamplingParams(temperature=0.0, repetition_penalty=2.0), 6),
        "presence": (SamplingParams(temperature=0.0, presence_penalty=1.5), 6),
        "frequency": (SamplingParams(temperature=0.0, frequency_penalty=1.5), 6),
        "top_k": (SamplingParams(temperature=2.0, top_k=1), 7),
        "top_p": (SamplingParams(temperature=1.0, top_p=0.1), 7),
        "min_p": (SamplingParams(temperature=1.0, min_p=0.9), 7),
    }
    output = run([RISING] * len(cases), *(params for params, _ in cases.values()), outputs=[7])
    chosen = dict(zip(cases, output.token_ids.tolist(), strict=True))
    assert chosen == {name: token_id for name, (_, token_id) in cases.items()}


def test_what_forbids_comes_before_what_draws() -> None:
    params = SamplingParams(temperature=1.0, top_k=1, allowed_token_ids=[2, 3, 7], min_tokens=1)
    assert run([RISING], params).token_ids.tolist() == [3]


def test_a_tiny_temperature_is_raised_before_logits_overflow() -> None:
    steep = [value * 1e34 for value in RISING]
    assert run([steep], SamplingParams(temperature=2e-5)).token_ids.tolist() == [7]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    asked = SamplingParams(temperature=0.0, logprobs=1, logit_bias={0: 100.0}, repetition_penalty=3.0)
    output = run([RISING, RISING], GREEDY, asked)
    exact = torch.log_softmax(torch.tensor(RISING), dim=0)
    assert output.token_ids.tolist() == [7, 0]
    lists = output.logprobs[1]
    assert output.logprobs == {1: LogprobsLists([[0, 7]], lists.logprobs, [8])}
    np.testing.assert_allclose(lists.logprobs, [[exact[0], exact[7]]], atol=1e-6)


def test_rows_without_a_possible_token_are_told_and_the_others_get_theirs() -> None:
    nan = [float("nan")] * VOCAB_SIZE
    drawn = SamplingParams(temperature=1.0, top_k=1, logprobs=0)
    output = run([nan, RISING, nan, RISING], GREEDY, GREEDY, drawn, drawn)
    assert output.is_valid.tolist() == [False, True, False, True]
    assert output.token_ids[[1, 3]].tolist() == [7, 7]
    assert list(output.logprobs) == [3]


def test_the_seed_and_the_place_among_the_outputs_decide_a_draw() -> None:
    params = SamplingParams(temperature=5.0)
    logits = torch.tensor([RISING]).expand(200, -1).clone()
    rows = np.zeros(200, dtype=np.int64)
    by_place = sample(logits.clone(), rows, np.arange(200), rows_of(params, seed=5)).token_ids
    again = sample(logits.clone(), rows, np.arange(200), rows_of(params, seed=5)).token_ids
    other_seed = sample(logits.clone(), rows, np.arange(200), rows_of(params, seed=-6)).token_ids
    assert by_place.tolist() == again.tolist()
    assert set(by_place.tolist()) == set(range(VOCAB_SIZE))
    assert by_place.tolist() != other_seed.tolist()


def test_half_precision_logits_are_accepted() -> None:
    output = sample(torch.tensor([RISING], dtype=torch.bfloat16), np.array([0]), np.array([0]), rows_of(GREEDY))
    assert output.token_ids.tolist() == [7]
