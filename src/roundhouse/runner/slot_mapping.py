"""Block tables and positions → slots, and the flattened order of a step's tokens. Pure numpy, no loop over tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class FlatTokens:
    """The step's tokens, request by request. T tokens of n requests.

    rows: int64 [T], the row of each token. positions: int64 [T], its place in its request.
    starts: int64 [n + 1], where each request's tokens begin; the last is T.
    """

    rows: np.ndarray
    positions: np.ndarray
    starts: np.ndarray


def flatten_tokens(rows: np.ndarray, num_computed: np.ndarray, num_scheduled: np.ndarray) -> FlatTokens:
    """rows, num_computed, num_scheduled: [n], of the step's requests in order."""
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(num_scheduled, out=starts[1:])
    total = int(starts[-1])
    if total == len(rows):
        # Every request has one token: no need to spread anything.
        return FlatTokens(rows=rows, positions=num_computed.astype(np.int64), starts=starts)
    positions = np.arange(total) + np.repeat(num_computed - starts[:-1], num_scheduled)
    return FlatTokens(rows=np.repeat(rows, num_scheduled), positions=positions, starts=starts)


def compute_slots(block_table: np.ndarray, tokens: FlatTokens, block_size: int) -> np.ndarray:
    """int64 [T]: block id × block_size + offset of each token. block_table: int32 [rows, max_blocks]."""
    block_ids = block_table[tokens.rows, tokens.positions // block_size]
    return block_ids.astype(np.int64) * block_size + tokens.positions % block_size
