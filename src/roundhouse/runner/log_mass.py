"""The logsumexp of each row of logits, with the same bits whatever rows stand beside it."""

from __future__ import annotations

import torch


def log_mass(logits: torch.Tensor) -> torch.Tensor:
    """float32 [n, vocab] → [n, 1]. A lone row is taken twice: torch shares the sum of one row between its threads, and
    they add in another order than one thread does."""
    if len(logits) == 1:
        return torch.logsumexp(logits.repeat(2, 1), dim=-1, keepdim=True)[:1]
    return torch.logsumexp(logits, dim=-1, keepdim=True)
