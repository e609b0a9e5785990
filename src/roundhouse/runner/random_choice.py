"""A token for each row, drawn from its tempered logits: the device finds head and mass, numpy makes the choice.

A choice is the argmax of logit + Gumbel noise, and the noise depends on (seed, position, token id, child) alone. So
small differences between devices flip a token only where two scores are about equal, and nobody else in the batch
matters.
"""

from __future__ import annotations

import numpy as np
import torch

from roundhouse.runner.philox import Purpose, gumbels, uniforms
from roundhouse.runner.sampling_rows import Draw
from roundhouse.runner.truncation import complete_head, count_survivors, sort_head

HEAD_SIZES = (64, 1024)
"""How many of the likeliest tokens to look at before the whole vocabulary is sorted, which takes 20 times as long."""


def draw_tokens(logits: torch.Tensor, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """(token ids: int64 [n], whether the row's logits allow a choice: bool [n]). logits: float32 [n, vocab]."""
    tempered = logits / torch.from_numpy(draw.temperature).to(logits.device).unsqueeze(1)
    log_mass = torch.logsumexp(tempered, dim=-1).cpu().numpy().astype(np.float64)
    chosen = np.zeros(len(log_mass), dtype=np.int64)
    possible = np.isfinite(log_mass)
    is_restricted = (draw.top_k < logits.shape[1]) | (draw.top_p < 1.0) | (draw.min_p > 0.0)
    pending = np.flatnonzero(possible)
    for head_size in (*HEAD_SIZES, logits.shape[1]):
        if len(pending) == 0:
            break
        pending = _draw_from_head(tempered, log_mass, draw, is_restricted, pending, head_size, chosen)
    return chosen, possible


def _draw_from_head(
    tempered: torch.Tensor,
    log_mass: np.ndarray,
    draw: Draw,
    is_restricted: np.ndarray,
    pending: np.ndarray,
    head_size: int,
    chosen: np.ndarray,
) -> np.ndarray:
    """Fills `chosen` for those of the rows `pending` that a head of `head_size` decides; returns the others."""
    vocab_size = tempered.shape[1]
    rows = tempered if len(pending) == len(tempered) else tempered[torch.from_numpy(pending).to(tempered.device)]
    top = torch.topk(rows, min(head_size, vocab_size), dim=-1)
    logits, token_ids = sort_head(top.values.cpu().numpy().astype(np.float64), top.indices.cpu().numpy())
    complete = complete_head(logits, vocab_size)
    own = draw.take(pending)
    counts, decided = count_survivors(
        logits, log_mass[pending], complete, top_k=own.top_k, top_p=own.top_p, min_p=own.min_p, vocab_size=vocab_size
    )
    free = ~is_restricted[pending]
    if free.any():
        counts, decided = np.where(free, complete, counts), decided | free
        in_tail = free & ~_in_head(logits, log_mass[pending], complete, own, vocab_size)
        for place in np.flatnonzero(in_tail):
            head = token_ids[place, : complete[place]]
            chosen[pending[place]] = _choose_outside(rows[place], head, own.take(np.array([place])))
        here = np.flatnonzero(decided & ~in_tail)
    else:
        here = np.flatnonzero(decided)
    if len(here) == len(counts):
        chosen[pending] = _choose(logits, token_ids, counts, own)
    else:
        chosen[pending[here]] = _choose(logits[here], token_ids[here], counts[here], own.take(here))
    return pending[~decided]


def _in_head(logits: np.ndarray, log_mass: np.ndarray, complete: np.ndarray, draw: Draw, vocab_size: int) -> np.ndarray:
    """One uniform per row says whether the token comes from the head or from all the rest, by their mass."""
    within = np.arange(logits.shape[1]) < complete[:, None]
    head_mass = np.where(within, np.exp(logits - log_mass[:, None]), 0.0).sum(axis=1)
    zeros = np.zeros(len(logits), dtype=np.int64)
    drawn = uniforms(draw.seeds, draw.positions, Purpose.HEAD_OR_TAIL, zeros, draw.child_indices)
    return (drawn < head_mass) | (complete >= vocab_size)


def _choose_outside(row: torch.Tensor, head: np.ndarray, draw: Draw) -> int:
    """A token of `row` that is not in `head`; `draw` is the row's own. Reads the whole vocabulary, and is rare."""
    logits = row.cpu().numpy().astype(np.float64)
    logits[head] = -np.inf
    tail = np.flatnonzero(logits > -np.inf)
    if len(tail) == 0:
        return int(head[0])
    own = draw.take(np.zeros(len(tail), dtype=np.int64))
    noise = gumbels(own.seeds, own.positions, tail, own.child_indices)
    return int(tail[np.argmax(logits[tail] + noise)])


def _choose(logits: np.ndarray, token_ids: np.ndarray, counts: np.ndarray, draw: Draw) -> np.ndarray:
    """The first `counts` tokens of each row compete; [n, h], [n, h], [n] → int64 [n]."""
    open_rows = np.flatnonzero(counts > 1)
    if len(open_rows) == 0:
        return token_ids[:, 0]
    width = int(counts.max())
    rows, places = np.nonzero((np.arange(width) < counts[:, None]) & (counts > 1)[:, None])
    scores = np.full((len(counts), width), -np.inf)
    noise = gumbels(draw.seeds[rows], draw.positions[rows], token_ids[rows, places], draw.child_indices[rows])
    scores[rows, places] = logits[rows, places] + noise
    best = np.argmax(scores, axis=1)
    return token_ids[np.arange(len(counts)), best]
