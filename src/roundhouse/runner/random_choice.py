"""A token for each row, drawn from its tempered logits: the device finds head and mass, numpy makes the choice.

A choice is the argmax of logit + Gumbel noise, and the noise depends on (seed, position, token id, child) alone. So
small differences between devices flip a token only where two scores are about equal, and nobody else in the batch
matters.

The vocabulary is looked at in heads: its 64 likeliest tokens, then more, all of it at last. A restricted row (top-k,
top-p, min-p) is decided by the first head that holds all its survivors. An unrestricted one has a uniform that says by
mass which head its token is in; then the tokens that this head adds to the one before compete.
"""

from __future__ import annotations

import numpy as np
import torch

from roundhouse.runner.log_mass import log_mass
from roundhouse.runner.philox import Purpose, gumbels, uniforms
from roundhouse.runner.sampling_rows import Draw
from roundhouse.runner.truncation import complete_head, count_survivors, sort_head

HEAD_SIZES = (64, 1024, 8192)
"""Before the whole vocabulary: finding 64 tokens takes a sixth of the time of 1,024, and of a full sort a fiftieth.
They are part of what makes a stream resumable: another list of sizes draws other tokens."""

_BLOCK = 64


def draw_tokens(logits: torch.Tensor, draw: Draw) -> tuple[np.ndarray, np.ndarray]:
    """(token ids: int64 [n], whether the row's logits allow a choice: bool [n]). logits: float32 [n, vocab]."""
    vocab_size = logits.shape[1]
    tempered = logits / torch.from_numpy(draw.temperature).to(logits.device).unsqueeze(1)
    mass = log_mass(tempered)[:, 0].cpu().numpy().astype(np.float64)
    chosen = np.zeros(len(mass), dtype=np.int64)
    possible = np.isfinite(mass)
    pending = np.flatnonzero(possible)
    if len(pending) == 0:
        return chosen, possible
    # Of each pending row, how many of the likeliest tokens the heads so far have ruled out.
    passed = np.zeros(len(pending), dtype=np.int64)
    for head_size in (*HEAD_SIZES, vocab_size):
        is_whole = len(pending) == len(tempered)
        rows = tempered if is_whole else tempered[torch.from_numpy(pending).to(tempered.device)]
        own = draw if is_whole else draw.take(pending)
        head_logits, token_ids = find_head(rows, head_size)
        counts, decided = _competitors(head_logits, mass[pending], own, vocab_size)
        if decided.all():
            chosen[pending] = _compete(head_logits, token_ids, passed, counts, own)
            break
        chosen[pending[decided]] = _compete(
            head_logits[decided], token_ids[decided], passed[decided], counts[decided], own.take(decided)
        )
        pending, passed = pending[~decided], np.where(own.is_restricted(vocab_size), 0, counts)[~decided]
    return chosen, possible


def find_head(logits: torch.Tensor, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The `size` highest logits of each row and their token ids, [n, size], in the one order of `truncation`."""
    num_rows, vocab_size = logits.shape
    size = min(size, vocab_size)
    if size <= _BLOCK and vocab_size % _BLOCK == 0 and vocab_size > 4 * _BLOCK * size:
        # They stand in the blocks with the highest maxima, and those are few: twice as fast as topk over all.
        blocks = logits.view(num_rows, -1, _BLOCK)
        best_blocks = torch.topk(blocks.amax(dim=-1), size, dim=-1, sorted=False).indices
        candidates = blocks.gather(1, best_blocks.unsqueeze(-1).expand(-1, -1, _BLOCK)).flatten(1)
        values, places = torch.topk(candidates, size, dim=-1)
        token_ids = best_blocks.gather(1, places // _BLOCK) * _BLOCK + places % _BLOCK
    else:
        values, token_ids = torch.topk(logits, size, dim=-1)
    return sort_head(values.cpu().numpy().astype(np.float64), token_ids.cpu().numpy())


def _competitors(
    head_logits: np.ndarray, mass: np.ndarray, draw: Draw, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """(where the competitors end in the head: int64 [n], whether the token is among them: bool [n])."""
    complete = complete_head(head_logits, vocab_size)
    is_restricted = draw.is_restricted(vocab_size)
    if is_restricted.all():
        return count_survivors(head_logits, mass, complete, draw.top_k, draw.top_p, draw.min_p, vocab_size)
    within = np.arange(head_logits.shape[1]) < complete[:, None]
    head_mass = np.where(within, np.exp(head_logits - mass[:, None]), 0.0).sum(axis=1)
    zeros = np.zeros(len(complete), dtype=np.int64)
    uniform = uniforms(draw.seeds, draw.positions, Purpose.HEAD_OR_TAIL, zeros, draw.child_indices)
    in_head = (uniform < head_mass) | (complete >= vocab_size)
    if not is_restricted.any():
        return complete, in_head
    counts, decided = count_survivors(head_logits, mass, complete, draw.top_k, draw.top_p, draw.min_p, vocab_size)
    return np.where(is_restricted, counts, complete), np.where(is_restricted, decided, in_head)


def _compete(
    head_logits: np.ndarray, token_ids: np.ndarray, starts: np.ndarray, ends: np.ndarray, draw: Draw
) -> np.ndarray:
    """The tokens from `starts` to `ends` of each row's head compete; int64 [n]."""
    num_rows = len(ends)
    if (ends - starts <= 1).all():
        return token_ids[np.arange(num_rows), starts]
    width = int(ends.max())
    columns = np.arange(width)
    competes = (columns >= starts[:, None]) & (columns < ends[:, None])
    rows, places = np.nonzero(competes)
    noise = gumbels(draw.seeds[rows], draw.positions[rows], token_ids[rows, places], draw.child_indices[rows])
    scores = np.full((num_rows, width), -np.inf)
    scores[rows, places] = head_logits[rows, places] + noise
    return token_ids[np.arange(num_rows), np.argmax(scores, axis=1)]
