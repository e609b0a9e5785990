"""`InputBatch`: the runner's rows, one per running request, kept between steps; a step applies what changed.

All per-token work is numpy over rows. Python touches each request once a step (id → row), and a token never.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roundhouse.runner.attention import AttentionMetadata
from roundhouse.runner.slot_mapping import compute_slots, flatten_tokens
from roundhouse.scheduler.step import NewRequest, SchedulerOutput


@dataclass(frozen=True, slots=True)
class StepInput:
    """One step's forward pass: n requests, T tokens, m of the requests sample.

    rows: int64 [n]. token_ids, positions: int64 [T]. sampling: int64 [m], places among the n requests.
    logits_indices: int64 [m], places among the T tokens.
    """

    request_ids: list[str]
    rows: np.ndarray
    num_scheduled: np.ndarray
    token_ids: np.ndarray
    positions: np.ndarray
    sampling: np.ndarray
    logits_indices: np.ndarray
    attention: AttentionMetadata


class InputBatch:
    """A free row holds whatever its last request left.

    token_ids: int32 [max_num_seqs, max_model_len + 1]. block_table: int32 [max_num_seqs, max_blocks].
    num_tokens, num_prompt_tokens, num_computed, num_blocks: int64 [max_num_seqs].
    """

    def __init__(self, *, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        # One more than the longest sequence: the last sampled token is kept too, though it is never computed.
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), dtype=np.int32)
        self.num_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_prompt_tokens = np.zeros(max_num_seqs, dtype=np.int64)
        self.num_computed = np.zeros(max_num_seqs, dtype=np.int64)
        self.block_table = np.zeros((max_num_seqs, -(-(max_model_len + 1) // block_size)), dtype=np.int32)
        self.num_blocks = np.zeros(max_num_seqs, dtype=np.int64)
        self.row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def remove(self, request_id: str) -> int | None:
        """The row that is free now; None when the runner never had that request."""
        row = self.row_of.pop(request_id, None)
        if row is not None:
            self._free_rows.append(row)
        return row

    def add(self, request: NewRequest) -> int:
        """The request's row. A request that has one already is a bug of the scheduler."""
        assert request.request_id not in self.row_of, f"{request.request_id} is in the batch already"
        row = self._free_rows.pop()
        self.row_of[request.request_id] = row
        num_tokens = len(request.token_ids)
        self.token_ids[row, :num_tokens] = request.token_ids
        self.num_tokens[row] = num_tokens
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self.num_computed[row] = request.num_computed_tokens
        self.num_blocks[row] = 0
        self.append_blocks(request.request_id, request.block_ids)
        return row

    def append_blocks(self, request_id: str, block_ids: list[int]) -> None:
        row = self.row_of[request_id]
        start = self.num_blocks[row]
        self.block_table[row, start : start + len(block_ids)] = block_ids
        self.num_blocks[row] = start + len(block_ids)

    def block_ids(self, row: int) -> list[int]:
        return self.block_table[row, : self.num_blocks[row]].tolist()

    def prepare(self, plan: SchedulerOutput) -> StepInput:
        """The step's input. Rows are as they were; `advance` moves them when the step is done."""
        request_ids = list(plan.num_scheduled_tokens)
        num_requests = len(request_ids)
        row_of = self.row_of
        rows = np.fromiter((row_of[request_id] for request_id in request_ids), np.int64, num_requests)
        num_scheduled = np.fromiter(plan.num_scheduled_tokens.values(), np.int64, num_requests)
        num_computed = self.num_computed[rows]
        tokens = flatten_tokens(rows, num_computed, num_scheduled)
        after = num_computed + num_scheduled
        num_tokens = self.num_tokens[rows]
        assert (after <= num_tokens).all(), "more tokens are scheduled than a request has"
        sampling = np.flatnonzero(after == num_tokens)
        width = -(-int(after.max()) // self.block_size)
        attention = AttentionMetadata(
            query_starts=tokens.starts,
            context_lens=num_computed,
            block_tables=self.block_table[rows, :width],
            slots=compute_slots(self.block_table, tokens, self.block_size),
            block_size=self.block_size,
        )
        return StepInput(
            request_ids=request_ids,
            rows=rows,
            num_scheduled=num_scheduled,
            token_ids=self.token_ids[tokens.rows, tokens.positions].astype(np.int64),
            positions=tokens.positions,
            sampling=sampling,
            logits_indices=tokens.starts[1:][sampling] - 1,
            attention=attention,
        )

    def advance(self, step: StepInput) -> None:
        """The step's tokens have their keys and values in the cache now."""
        self.num_computed[step.rows] += step.num_scheduled

    def append_tokens(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """One sampled token to the end of each of `rows`."""
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1

    def apply(self, plan: SchedulerOutput) -> tuple[list[int], list[tuple[int, NewRequest]]]:
        """Drops, adds and extends rows: (rows that are free now, rows that are new with their requests)."""
        freed = [row for row in map(self.remove, plan.finished) if row is not None]
        added = [(self.add(request), request) for request in plan.new_requests]
        for request_id, block_ids in plan.new_blocks.items():
            self.append_blocks(request_id, block_ids)
        return freed, added
