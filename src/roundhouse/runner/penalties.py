"""Repetition, presence and frequency penalties, on the tokens that a request has seen and on no others.

The counts follow the request token by token; a step reads them and never the history.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from roundhouse.protocol.sampling import SamplingParams


class SeenTokens:
    """The distinct tokens of one request, in the order of their first appearance, and how often each is an output.

    The prompt counts for the repetition penalty only, so without that penalty it is left out.
    """

    def __init__(self, params: SamplingParams, prompt_token_ids: list[int], output_token_ids: list[int]) -> None:
        self.repetition = params.repetition_penalty
        self.presence = params.presence_penalty
        self.frequency = params.frequency_penalty
        prompt = list(dict.fromkeys(prompt_token_ids)) if params.repetition_penalty != 1.0 else []
        self._place_of = {token_id: place for place, token_id in enumerate(prompt)}
        self._token_ids = np.array(prompt, dtype=np.int64)
        self._counts = np.zeros(len(prompt), dtype=np.int64)
        for token_id in output_token_ids:
            self.append(token_id)

    @property
    def token_ids(self) -> np.ndarray:
        """int64 [number of distinct tokens]."""
        return self._token_ids[: len(self._place_of)]

    @property
    def output_counts(self) -> np.ndarray:
        """int64, of `token_ids`; 0 for a token of the prompt alone."""
        return self._counts[: len(self._place_of)]

    def append(self, token_id: int) -> None:
        """Counts one output."""
        place = self._place_of.setdefault(token_id, len(self._place_of))
        if place == len(self._token_ids):
            room = np.zeros(max(16, place), dtype=np.int64)
            self._token_ids = np.concatenate([self._token_ids, room])
            self._counts = np.concatenate([self._counts, room])
        self._token_ids[place] = token_id
        self._counts[place] += 1


def apply_penalties(logits: torch.Tensor, places: Sequence[int], seen: Sequence[SeenTokens]) -> None:
    """Changes float32 logits [n, vocab] in place; `seen[i]` belongs to row `places[i]`. One gather and one scatter."""
    sizes = [len(one.token_ids) for one in seen]
    rows = torch.from_numpy(np.repeat(np.array(places, dtype=np.int64), sizes)).to(logits.device)
    token_ids = torch.from_numpy(np.concatenate([one.token_ids for one in seen])).to(logits.device)
    counts = np.concatenate([one.output_counts for one in seen])
    presence = np.repeat(np.array([one.presence for one in seen]), sizes)
    frequency = np.repeat(np.array([one.frequency for one in seen]), sizes)
    repetition = np.repeat(np.array([one.repetition for one in seen], dtype=np.float32), sizes)
    subtracted = (presence * (counts > 0) + frequency * counts).astype(np.float32)
    factor = torch.from_numpy(repetition).to(logits.device)
    values = logits[rows, token_ids]
    values = torch.where(values > 0, values / factor, values * factor)
    logits[rows, token_ids] = values - torch.from_numpy(subtracted).to(logits.device)
