"""The sampling parameters of the runner's rows, as arrays, so that a step reads those of its batch in one go each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from roundhouse.protocol.sampling import SMALLEST_TEMPERATURE
from roundhouse.runner.guided_rows import NO_MASKS
from roundhouse.runner.logit_edits import LogitEdits, has_logit_edits
from roundhouse.runner.penalties import SeenTokens
from roundhouse.scheduler.step import NewRequest

_SEED_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """What a draw of n tokens depends on beside the logits; arrays [n].

    top_k: the vocabulary's size when off. positions: of the token among its request's outputs.
    """

    temperature: np.ndarray
    top_k: np.ndarray
    top_p: np.ndarray
    min_p: np.ndarray
    seeds: np.ndarray
    child_indices: np.ndarray
    positions: np.ndarray

    def is_restricted(self, vocab_size: int) -> np.ndarray:
        """Whether top-k, top-p or min-p rule tokens out: bool [n]."""
        return (self.top_k < vocab_size) | (self.top_p < 1.0) | (self.min_p > 0.0)

    def take(self, index: np.ndarray) -> Draw:
        return Draw(*(getattr(self, name)[index] for name in self.__slots__))


class SamplingRows:
    """is_greedy, is_edited, num_logprobs and has_logprobs: [max_num_seqs], by row; the rest is behind `draw`.

    masks: of the rows with a grammar that sample in this step.
    """

    def __init__(self, *, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self.is_greedy = np.zeros(max_num_seqs, dtype=bool)
        self.is_edited = np.zeros(max_num_seqs, dtype=bool)
        self.has_logprobs = np.zeros(max_num_seqs, dtype=bool)
        self.num_logprobs = np.zeros(max_num_seqs, dtype=np.int64)
        self.is_plain = np.zeros(max_num_seqs, dtype=bool)
        self._temperature = np.ones(max_num_seqs, dtype=np.float32)
        self._top_k = np.zeros(max_num_seqs, dtype=np.int64)
        self._top_p = np.ones(max_num_seqs)
        self._min_p = np.zeros(max_num_seqs)
        self._seeds = np.zeros(max_num_seqs, dtype=np.uint64)
        self._child_indices = np.zeros(max_num_seqs, dtype=np.int64)
        self.edits: dict[int, LogitEdits] = {}
        self.seen: dict[int, SeenTokens] = {}
        self.masks = NO_MASKS

    def add(self, row: int, request: NewRequest) -> None:
        """Raises `InvalidRequest` when a parameter names a token outside the vocabulary; then the row is not usable."""
        params = request.sampling_params
        self.remove(row)
        if has_logit_edits(request):
            self.edits[row] = LogitEdits(request, vocab_size=self._vocab_size, device=self._device)
        if params.has_penalties:
            num_prompt = request.num_prompt_tokens
            self.seen[row] = SeenTokens(params, request.token_ids[:num_prompt], request.token_ids[num_prompt:])
        self.is_edited[row] = row in self.edits or row in self.seen
        self.is_greedy[row] = params.is_greedy
        self.has_logprobs[row] = params.logprobs is not None
        self.num_logprobs[row] = params.logprobs or 0
        self.is_plain[row] = (
            params.is_greedy
            and not self.is_edited[row]
            and params.logprobs is None
            and params.structured_outputs is None
        )
        self._temperature[row] = max(params.temperature, SMALLEST_TEMPERATURE)
        self._top_k[row] = params.top_k if 0 < params.top_k < self._vocab_size else self._vocab_size
        self._top_p[row] = params.top_p
        self._min_p[row] = params.min_p
        self._seeds[row] = request.seed & _SEED_MASK
        self._child_indices[row] = request.child_index

    def remove(self, row: int) -> None:
        self.edits.pop(row, None)
        self.seen.pop(row, None)

    def append_tokens(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """Tells the penalties of the outputs that came."""
        if self.seen:
            for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True):
                if row in self.seen:
                    self.seen[row].append(token_id)

    def draw(self, rows: np.ndarray, positions: np.ndarray) -> Draw:
        return Draw(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            seeds=self._seeds[rows],
            child_indices=self._child_indices[rows],
            positions=positions,
        )
