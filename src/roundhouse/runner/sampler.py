"""Logits [num_reqs, vocab] → token ids. The order: grammar, what is allowed, min_tokens, bias, penalties; the choice.

Log probabilities are of the logits behind the grammar and before the rest, as people know it from vLLM.

Every row's token depends on its own logits, parameters and counters alone, never on who shares its batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roundhouse.protocol.messages import LogprobsLists
from roundhouse.runner.guided_rows import Masks
from roundhouse.runner.logprobs import compute_logprobs
from roundhouse.runner.penalties import apply_penalties
from roundhouse.runner.random_choice import draw_tokens
from roundhouse.runner.sampling_rows import SamplingRows


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """token_ids: int64 [n]. is_valid: bool [n], False where no token could be chosen: the logits are not finite, or the
    parameters forbid every token. logprobs: by place, of the rows that asked."""

    token_ids: np.ndarray
    is_valid: np.ndarray
    logprobs: dict[int, LogprobsLists]


def sample(logits: torch.Tensor, rows: np.ndarray, num_outputs: np.ndarray, params: SamplingRows) -> SamplerOutput:
    """logits: [n, vocab], overwritten. rows: [n], of `params`. num_outputs: int64 [n], outputs before this one."""
    logits = logits.float()
    if params.is_plain[rows].all():
        return SamplerOutput(*_argmax(logits), logprobs={})
    has_logprobs = params.has_logprobs[rows]
    if params.masks.forbidden:
        _forbid(logits, rows, params.masks)
    processed = logits
    is_edited = params.is_edited[rows]
    if is_edited.any():
        processed = logits.clone() if has_logprobs.any() else logits
        _edit(processed, np.flatnonzero(is_edited), rows, num_outputs, params)
    token_ids, is_valid = _choose(processed, rows, num_outputs, params)
    logprobs = _logprobs(logits, token_ids, np.flatnonzero(has_logprobs & is_valid), params.num_logprobs[rows])
    return SamplerOutput(token_ids, is_valid, logprobs)


def _forbid(logits: torch.Tensor, rows: np.ndarray, masks: Masks) -> None:
    for place, row in enumerate(rows.tolist()):
        if row in masks.forbidden:
            logits[place].masked_fill_(masks.forbidden[row], float("-inf"))


def _edit(
    logits: torch.Tensor, places: np.ndarray, rows: np.ndarray, num_outputs: np.ndarray, params: SamplingRows
) -> None:
    penalized = [place for place in places.tolist() if int(rows[place]) in params.seen]
    for place in places.tolist():
        row = int(rows[place])
        edits = params.edits.get(row)
        # Where a grammar is over its end is all that may come, min_tokens or not.
        if edits is not None and row not in params.masks.at_end:
            edits.apply(logits[place], int(num_outputs[place]))
    if penalized:
        apply_penalties(logits, penalized, [params.seen[int(rows[place])] for place in penalized])


def _choose(
    logits: torch.Tensor, rows: np.ndarray, num_outputs: np.ndarray, params: SamplingRows
) -> tuple[np.ndarray, np.ndarray]:
    is_greedy = params.is_greedy[rows]
    if is_greedy.all():
        return _argmax(logits)
    if not is_greedy.any():
        return draw_tokens(logits, params.draw(rows, num_outputs))
    token_ids = np.zeros(len(rows), dtype=np.int64)
    is_valid = np.zeros(len(rows), dtype=bool)
    greedy, drawn = np.flatnonzero(is_greedy), np.flatnonzero(~is_greedy)
    token_ids[greedy], is_valid[greedy] = _argmax(_take(logits, greedy))
    token_ids[drawn], is_valid[drawn] = draw_tokens(_take(logits, drawn), params.draw(rows[drawn], num_outputs[drawn]))
    return token_ids, is_valid


def _argmax(logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """A NaN counts as the highest, so a row is sound when its highest logit is finite. max is three times faster than
    argmax on CPU."""
    best, token_ids = logits.max(dim=-1)
    return token_ids.cpu().numpy(), np.isfinite(best.cpu().numpy())


def _logprobs(
    logits: torch.Tensor, token_ids: np.ndarray, places: np.ndarray, num_logprobs: np.ndarray
) -> dict[int, LogprobsLists]:
    if len(places) == 0:
        return {}
    chosen = torch.from_numpy(token_ids[places]).to(logits.device)
    computed = compute_logprobs(_take(logits, places), chosen, int(num_logprobs[places].max()))
    return {place: computed.lists(row, int(num_logprobs[place])) for row, place in enumerate(places.tolist())}


def _take(logits: torch.Tensor, places: np.ndarray) -> torch.Tensor:
    """Those rows, in order; no copy when they are all."""
    if len(places) == len(logits):
        return logits
    return logits[torch.from_numpy(places).to(logits.device)]
