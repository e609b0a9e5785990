import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.runner.truncation import complete_head, count_survivors, sort_head


def naive_survivors(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> list[int]:
    """Token ids that survive, by a full sort and one rule after the other."""
    order = np.lexsort((np.arange(len(logits)), -logits))
    weights = np.exp(logits[order] - logits.max())
    weights /= weights.sum()
    kept = [place for place in range(len(order)) if place < top_k and weights[place] > 0]
    if top_p < 1:
        mass = weights[kept].sum() if top_k < len(order) else 1.0
        kept = [place for place in kept if weights[:place].sum() < top_p * mass]
    kept = [place for place in kept if weights[place] >= min_p * weights[0]]
    return order[kept].tolist()


def survivors_of_head(logits: np.ndarray, head_size: int, top_k: int, top_p: float, min_p: float) -> list[int] | None:
    """As the sampler finds them in a head of `head_size`; None when it does not decide."""
    # As torch.topk may: equal logits in the order opposite to ours.
    order = np.lexsort((-np.arange(len(logits)), -logits))[:head_size]
    head, token_ids = sort_head(logits[order][None], order[None])
    counts, decided = count_survivors(
        head,
        np.array([np.log(np.exp(logits - logits.max()).sum()) + logits.max()]),
        complete_head(head, len(logits)),
        np.array([top_k]),
        np.array([top_p]),
        np.array([min_p]),
        len(logits),
    )
    return token_ids[0, : counts[0]].tolist() if decided[0] else None


# Eighths, so that equal logits are common, as they are in bfloat16.
LOGITS = st.lists(st.integers(-24, 24), min_size=2, max_size=40).map(lambda eighths: np.array(eighths) / 8)
PARAMETERS = {
    "top_k": st.integers(1, 40),
    # No mass of a few equal tokens comes near one of these, so that rounding decides nothing.
    "top_p": st.sampled_from([0.0503, 0.3017, 0.5119, 0.8311, 0.9713, 1.0]),
    "min_p": st.sampled_from([0.0, 0.02, 0.2, 0.7, 1.0]),
}


@settings(max_examples=300)
@given(logits=LOGITS, head_size=st.integers(1, 40), **PARAMETERS)
def test_survivors_equal_those_of_a_full_sort(
    logits: np.ndarray, head_size: int, top_k: int, top_p: float, min_p: float
) -> None:
    top_k = min(top_k, len(logits))
    expected = naive_survivors(logits, top_k, top_p, min_p)
    assert survivors_of_head(logits, len(logits), top_k, top_p, min_p) == expected
    assert survivors_of_head(logits, min(head_size, len(logits)), top_k, top_p, min_p) in (None, expected)


def test_a_head_with_a_few_more_than_the_survivors_decides() -> None:
    logits = np.arange(100, dtype=np.float64)[::-1] / 3
    assert survivors_of_head(logits, 11, 10, 1.0, 0.0) == list(range(10))
    assert survivors_of_head(logits, 20, 100, 0.9, 0.0) == naive_survivors(logits, 100, 0.9, 0.0)
    assert survivors_of_head(logits, 20, 100, 1.0, 0.1) == naive_survivors(logits, 100, 1.0, 0.1)


def test_a_head_that_does_not_hold_all_survivors_does_not_decide() -> None:
    logits = np.arange(100, dtype=np.float64)[::-1] / 100
    assert survivors_of_head(logits, 20, 30, 1.0, 0.0) is None
    assert survivors_of_head(logits, 20, 100, 0.9, 0.0) is None
    assert survivors_of_head(logits, 20, 100, 1.0, 0.5) is None


def test_top_p_needs_the_whole_of_top_k_for_its_mass() -> None:
    logits = np.zeros(10)
    logits[:2] = 3.0, 2.0
    assert survivors_of_head(logits, 4, 6, 0.5, 0.0) is None
    assert survivors_of_head(logits, 10, 6, 0.5, 0.0) == [0]


def test_equal_logits_survive_by_token_id() -> None:
    assert survivors_of_head(np.zeros(5), 5, 2, 1.0, 0.0) == [0, 1]
    assert survivors_of_head(np.zeros(5), 3, 2, 1.0, 0.0) is None


def test_impossible_tokens_never_survive() -> None:
    logits = np.array([0.0, -np.inf, 0.0, -np.inf])
    assert survivors_of_head(logits, 4, 3, 1.0, 0.0) == [0, 2]
