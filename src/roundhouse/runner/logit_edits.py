"""What a request forbids or favours by token id: allowed_token_ids, min_tokens, logit_bias."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.scheduler.step import NewRequest


class LogitEdits:
    """The edits of one request, as tensors on the logits' device from its admission on.

    Raises `InvalidRequest` for a token id outside the vocabulary.
    """

    def __init__(self, request: NewRequest, *, vocab_size: int, device: torch.device) -> None:
        params = request.sampling_params

        def index(name: str, token_ids: Iterable[int]) -> torch.Tensor:
            ids = list(token_ids)
            if not all(0 <= token_id < vocab_size for token_id in ids):
                raise InvalidRequest(f"{name} names a token id outside the vocabulary of {vocab_size}", param=name)
            return torch.tensor(ids, dtype=torch.long, device=device)

        self._min_tokens = params.min_tokens
        self._stop_token_ids = index("stop_token_ids", sorted(request.stop_token_ids)) if params.min_tokens else None
        self._forbidden: torch.Tensor | None = None
        if params.allowed_token_ids is not None:
            self._forbidden = torch.ones(vocab_size, dtype=torch.bool, device=device)
            self._forbidden[index("allowed_token_ids", params.allowed_token_ids)] = False
        self._biased = index("logit_bias", params.logit_bias) if params.logit_bias else None
        self._bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=device)

    def apply(self, logits: torch.Tensor, num_output_tokens: int) -> None:
        """Changes float32 logits [vocab_size] in place, for the token after `num_output_tokens` outputs."""
        if self._forbidden is not None:
            logits.masked_fill_(self._forbidden, float("-inf"))
        if self._stop_token_ids is not None and num_output_tokens < self._min_tokens:
            logits.index_fill_(0, self._stop_token_ids, float("-inf"))
        if self._biased is not None:
            logits.index_add_(0, self._biased, self._bias)


def has_logit_edits(request: NewRequest) -> bool:
    params = request.sampling_params
    return params.allowed_token_ids is not None or bool(params.logit_bias) or params.min_tokens > 0
