"""Log probabilities of tokens: of the model's own logits, before temperature, penalties or any other parameter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roundhouse.protocol.messages import LogprobsLists
from roundhouse.runner.log_mass import log_mass

LOGITS_PER_SLICE = 2**24
"""Logits that are worked on at a time when a whole prompt's are wanted: 64 MiB of float32."""


@dataclass(frozen=True, slots=True)
class LogprobsRows:
    """token_ids int32 [n, k + 1] and logprobs float32 [n, k + 1]: the token that came, then the k likeliest in order.
    ranks int32 [n]: of the token that came, 1 the likeliest; equals share the better rank."""

    token_ids: np.ndarray
    logprobs: np.ndarray
    ranks: np.ndarray

    def lists(self, row: int, k: int) -> LogprobsLists:
        """One row with its k likeliest; k may be less than this has."""
        return LogprobsLists(
            token_ids=[self.token_ids[row, : k + 1].tolist()],
            logprobs=[self.logprobs[row, : k + 1].tolist()],
            ranks=[int(self.ranks[row])],
        )


def compute_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, k: int) -> LogprobsRows:
    """logits: float32 [n, vocab]. token_ids: int64 [n], the tokens that came."""
    mass = log_mass(logits)
    own = logits.gather(1, token_ids.unsqueeze(1))
    # Summed in int32: twice as fast as in the default int64.
    ranks = (logits > own).sum(dim=1, dtype=torch.int32) + 1
    k = min(k, logits.shape[1])
    ids, values = token_ids.unsqueeze(1), own
    if k:
        top_ids, top_logits = likeliest(logits, k)
        ids, values = torch.cat([ids, top_ids], dim=1), torch.cat([own, top_logits], dim=1)
    return LogprobsRows(
        token_ids=ids.to(torch.int32).cpu().numpy(),
        logprobs=(values - mass).cpu().numpy(),
        ranks=ranks.cpu().numpy(),
    )


def likeliest(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, logits) of each row's k highest logits, [n, k], equal ones by token id: the first of any longer list too.

    `torch.topk` orders equal logits as it comes, differently for another k, which others in the batch may decide.
    """
    values, token_ids = torch.topk(logits, k, dim=-1)
    last = values[:, -1:]
    # Where only some of the tokens with the lowest of these logits are in, they must be the first.
    is_cut = (logits == last).sum(dim=1, dtype=torch.int32) > (values == last).sum(dim=1, dtype=torch.int32)
    for row in is_cut.nonzero()[:, 0].tolist():
        tied = values[row] == last[row]
        token_ids[row, tied] = (logits[row] == last[row]).nonzero()[: int(tied.sum()), 0]
    if (values[:, 1:] == values[:, :-1]).any():
        by_id = token_ids.argsort(dim=-1)
        by_value = values.gather(1, by_id).argsort(dim=-1, descending=True, stable=True)
        order = by_id.gather(1, by_value)
        values, token_ids = values.gather(1, order), token_ids.gather(1, order)
    return token_ids, values
