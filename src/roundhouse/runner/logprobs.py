"""Log probabilities of tokens: of the model's own logits, before temperature, penalties or any other parameter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roundhouse.protocol.messages import LogprobsLists

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
    log_mass = torch.logsumexp(logits, dim=-1, keepdim=True)
    own = logits.gather(1, token_ids.unsqueeze(1))
    # Summed in int32: twice as fast as in the default int64.
    ranks = (logits > own).sum(dim=1, dtype=torch.int32) + 1
    k = min(k, logits.shape[1])
    top = torch.topk(logits, k, dim=-1) if k else None
    ids = torch.cat([token_ids.unsqueeze(1), top.indices], dim=1) if top else token_ids.unsqueeze(1)
    values = (torch.cat([own, top.values], dim=1) if top else own) - log_mass
    return LogprobsRows(
        token_ids=ids.to(torch.int32).cpu().numpy(),
        logprobs=values.cpu().numpy(),
        ranks=ranks.cpu().numpy(),
    )
