"""Log probabilities of a prompt's tokens, gathered chunk by chunk and handed over once, when the prompt is complete."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from roundhouse.protocol.messages import PromptLogprobs
from roundhouse.runner.logprobs import LOGITS_PER_SLICE, compute_logprobs


class PromptLogprobsRow:
    """The rows so far of one request: n - 1 for a prompt of n tokens, in order from the first."""

    def __init__(self, num_prompt_tokens: int, k: int) -> None:
        self._k = k
        self._num_rows = num_prompt_tokens - 1
        self._token_ids = np.zeros((self._num_rows, k + 1), dtype=np.int32)
        self._logprobs = np.zeros((self._num_rows, k + 1), dtype=np.float32)
        self._ranks = np.zeros(self._num_rows, dtype=np.int32)

    def add_chunk(
        self,
        first_position: int,
        next_token_ids: np.ndarray,
        first_index: int,
        logits_of: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
    ) -> None:
        """Tokens from `first_position` on have been computed; the token that came after each is in `next_token_ids`.

        logits_of: indices [m] among the step's tokens → logits [m, vocab]; `first_index` is the first one's. Called for
        slices, so that the logits of a long prompt never stand in memory together.
        """
        position, index = first_position, first_index
        rows_per_slice = 1
        while len(next_token_ids):
            count = min(rows_per_slice, len(next_token_ids))
            logits = logits_of(torch.arange(index, index + count, device=device)).float()
            rows_per_slice = max(1, LOGITS_PER_SLICE // logits.shape[1])
            came = torch.from_numpy(next_token_ids[:count].astype(np.int64)).to(device)
            computed = compute_logprobs(logits, came, self._k)
            there = slice(position, position + count)
            width = computed.token_ids.shape[1]
            self._token_ids[there, :width] = computed.token_ids
            self._logprobs[there, :width] = computed.logprobs
            self._ranks[there] = computed.ranks
            next_token_ids = next_token_ids[count:]
            position, index = position + count, index + count

    def finish(self) -> PromptLogprobs:
        return PromptLogprobs(token_ids=self._token_ids, logprobs=self._logprobs, ranks=self._ranks)
