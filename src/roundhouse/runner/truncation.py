"""top-k, then top-p, then min-p: how many of the likeliest tokens survive. Pure numpy on the head of the vocabulary.

All three keep a prefix of one order: by logit, highest first, equal logits by token id. So survivors are a count, and
the head of the order is enough as soon as that count falls inside it.
"""

from __future__ import annotations

import numpy as np


def sort_head(logits: np.ndarray, token_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n, h] in torch.topk's order (equal logits in any order) → in the one order. Copies only where some are equal."""
    if not (logits[:, 1:] == logits[:, :-1]).any():
        return logits, token_ids
    order = np.lexsort((token_ids, -logits), axis=-1)
    return np.take_along_axis(logits, order, axis=1), np.take_along_axis(token_ids, order, axis=1)


def complete_head(logits: np.ndarray, vocab_size: int) -> np.ndarray:
    """How much of a head of the h highest logits [n, h] is sure to be the beginning of the whole order: int64 [n].

    Tokens with the lowest logit of the head may have equals outside it that come first.
    """
    num_rows, head_size = logits.shape
    if head_size >= vocab_size:
        return np.full(num_rows, head_size, dtype=np.int64)
    return (logits > logits[:, -1:]).sum(axis=1)


def count_survivors(
    logits: np.ndarray,
    log_mass: np.ndarray,
    complete: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    min_p: np.ndarray,
    vocab_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """(how many survive: int64 [n], whether this head decides it: bool [n]). Where it does not, a longer head must.

    logits: float64 [n, h], tempered, in order. log_mass: [n], the logsumexp over the vocabulary, finite. complete: [n],
    of `complete_head`. top_k: int [n], `vocab_size` when off. top_p: [n], 1 when off. min_p: [n], 0 when off.
    A token survives top-p when the tokens before it weigh less than top_p together, of the mass that top-k left; and
    min-p when its probability is at least min_p times the highest. A token without any weight never survives.
    """
    weights = np.exp(logits - log_mass[:, None])
    survives = weights > 0.0
    has_top_k = top_k < vocab_size
    if has_top_k.any():
        kept = np.arange(logits.shape[1]) < top_k[:, None]
        survives &= kept
        mass = np.where(has_top_k, (weights * kept).sum(axis=1), 1.0)
    else:
        mass = np.ones(len(logits))
    has_top_p = top_p < 1.0
    if has_top_p.any():
        before = np.cumsum(weights, axis=1) - weights
        survives &= (before < (top_p * mass)[:, None]) | ~has_top_p[:, None]
    if (min_p > 0.0).any():
        survives &= weights >= (weights[:, 0] * min_p)[:, None]
    # The likeliest token always survives: `before` of it may round to a hair under 0, never over.
    counts = np.where(survives.all(axis=1), logits.shape[1], survives.argmin(axis=1))
    decided = (counts < complete) | ((counts == top_k) & (counts <= complete))
    decided &= ~(has_top_k & has_top_p) | (top_k <= complete)
    return counts, decided | (complete >= vocab_size)
