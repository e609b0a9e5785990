"""The sampler draws from the exact distribution, and the same token whoever shares the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.runner.random_choice import draw_tokens, find_head
from roundhouse.runner.sampling_rows import Draw

NUM_DRAWS = 6_000


def draw_of(
    count: int,
    vocab_size: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    first_seed: int = 0,
) -> Draw:
    return Draw(
        temperature=np.full(count, temperature, dtype=np.float32),
        top_k=np.full(count, top_k or vocab_size),
        top_p=np.full(count, top_p),
        min_p=np.full(count, min_p),
        seeds=np.arange(first_seed, first_seed + count, dtype=np.uint64),
        child_indices=np.zeros(count, dtype=np.int64),
        positions=np.full(count, 3),
    )


def frequencies(logits: torch.Tensor, **parameters: float) -> np.ndarray:
    """How often each token is drawn, with as many seeds as draws."""
    vocab_size = len(logits)
    counts = np.zeros(vocab_size)
    for first in range(0, NUM_DRAWS, 250):
        draw = draw_of(250, vocab_size, first_seed=first, **parameters)
        token_ids, possible = draw_tokens(logits.expand(250, -1), draw)
        assert possible.all()
        counts += np.bincount(token_ids, minlength=vocab_size)
    return counts


def assert_drawn_from(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """Chi-square over tokens that are expected at least five times; the rest are one bin. The seeds are fixed."""
    expected = probabilities * counts.sum()
    common = expected >= 5
    bins = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    bins, wanted = bins[wanted > 0], wanted[wanted > 0]
    degrees = len(bins) - 1
    statistic = ((bins - wanted) ** 2 / wanted).sum()
    assert statistic < degrees + 3.5 * np.sqrt(2 * degrees) + 3, f"{statistic:.1f} with {degrees} degrees of freedom"
    assert (counts[probabilities == 0] == 0).all()


def peaked(vocab_size: int, steepness: float) -> torch.Tensor:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(1)) * steepness
    return logits


@pytest.mark.parametrize(
    ("vocab_size", "steepness", "temperature"),
    [(50, 1.0, 1.0), (300, 1.0, 0.7), (300, 3.0, 1.0), (1100, 1.0, 1.0), (9000, 3.0, 1.0)],
    ids=["no tail", "head and tail", "nearly all head", "nearly all tail", "all heads"],
)
def test_unrestricted_draws_follow_the_softmax(vocab_size: int, steepness: float, temperature: float) -> None:
    logits = peaked(vocab_size, steepness)
    exact = torch.softmax(logits.double() / temperature, dim=0).numpy()
    assert_drawn_from(frequencies(logits, temperature=temperature), exact)


def test_equal_logits_are_drawn_equally() -> None:
    assert_drawn_from(frequencies(torch.zeros(200)), np.full(200, 1 / 200))


@pytest.mark.parametrize(
    "parameters", [{"top_k": 5}, {"top_k": 100}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 90, "top_p": 0.9}]
)
def test_restricted_draws_follow_the_softmax_of_the_survivors(parameters: dict[str, float]) -> None:
    logits = peaked(300, 1.5)
    weights = torch.softmax(logits.double() / 0.8, dim=0).numpy()
    order = np.argsort(-weights)
    kept = np.arange(300) < parameters.get("top_k", 300)
    before = np.cumsum(weights[order]) - weights[order]
    kept &= before < parameters.get("top_p", 1.0) * weights[order][kept].sum()
    kept &= weights[order] >= parameters.get("min_p", 0.0) * weights.max()
    exact = np.zeros(300)
    exact[order[kept]] = weights[order[kept]] / weights[order[kept]].sum()
    assert_drawn_from(frequencies(logits, temperature=0.8, **parameters), exact)


@settings(max_examples=50)
@given(data=st.data())
def test_a_token_depends_on_its_own_row_alone(data: st.DataObject) -> None:
    vocab_size, count = 1500, 6
    logits = torch.randn(count, vocab_size, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))) * 2
    draw = replace(
        draw_of(count, vocab_size, first_seed=data.draw(st.integers(0, 2**63))),
        top_k=np.array(data.draw(st.lists(st.sampled_from([1, 40, 700, 1500]), min_size=count, max_size=count))),
        top_p=np.array(data.draw(st.lists(st.sampled_from([0.5, 0.99, 1.0]), min_size=count, max_size=count))),
        min_p=np.array(data.draw(st.lists(st.sampled_from([0.0, 0.01]), min_size=count, max_size=count))),
        positions=np.array(data.draw(st.lists(st.integers(0, 5000), min_size=count, max_size=count))),
    )
    together, _ = draw_tokens(logits, draw)
    chosen = np.array(data.draw(st.permutations(range(count))))[: data.draw(st.integers(1, count))]
    apart, _ = draw_tokens(logits[torch.from_numpy(chosen)], draw.take(chosen))
    assert apart.tolist() == together[chosen].tolist()


def test_small_noise_on_the_logits_seldom_changes_a_token() -> None:
    logits = peaked(1500, 3.0).expand(NUM_DRAWS // 10, -1)
    noise = torch.randn(1500, generator=torch.Generator().manual_seed(2)) * 0.05
    draw = draw_of(len(logits), 1500)
    assert (draw_tokens(logits, draw)[0] != draw_tokens(logits + noise, draw)[0]).mean() < 0.05


def test_rows_without_a_possible_token_are_told_and_harm_no_other() -> None:
    logits = torch.zeros(4, 100)
    logits[0] = float("nan")
    logits[1, 5] = float("inf")
    logits[2] = float("-inf")
    token_ids, possible = draw_tokens(logits, draw_of(4, 100, top_p=0.9))
    assert possible.tolist() == [False, False, False, True]
    assert token_ids[3] == draw_tokens(logits[3:], draw_of(1, 100, top_p=0.9, first_seed=3))[0][0]


@pytest.mark.parametrize("vocab_size", [64, 100, 64 * 64 * 5, 64 * 64 * 5 + 1])
def test_find_head_by_blocks_equals_a_sort(vocab_size: int) -> None:
    logits = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(3))
    values, token_ids = find_head(logits, 64)
    expected = logits.sort(dim=1, descending=True)
    np.testing.assert_array_equal(values, expected.values[:, :64].double().numpy())
    np.testing.assert_array_equal(token_ids, expected.indices[:, :64].numpy())
