"""What an attention backend is: it prepares itself once a step and is then called by every layer of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from roundhouse.models.attention import StepAttention


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's batch of n requests and T tokens, request by request.

    query_starts: int64 [n + 1], where each request's tokens begin. context_lens: int64 [n], tokens computed before.
    block_tables: int32 [n, width], each row's first ⌈seq_len / block_size⌉ entries are its blocks, the rest is padding.
    slots: int64 [T], where each token's key and value go.
    """

    query_starts: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    slots: np.ndarray
    block_size: int

    @property
    def query_lens(self) -> np.ndarray:
        return np.diff(self.query_starts)

    @property
    def seq_lens(self) -> np.ndarray:
        """Tokens of each request after this step."""
        return self.context_lens + self.query_lens


class AttentionBackend(Protocol):
    @property
    def name(self) -> str: ...

    def begin(self, metadata: AttentionMetadata) -> StepAttention:
        """The attention of one step: whatever all layers share is worked out here, once."""
        ...
