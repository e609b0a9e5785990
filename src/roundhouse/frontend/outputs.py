"""What `AsyncLLM.generate` yields. The names are vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from roundhouse.protocol.errors import RoundhouseError


class RequestOutputKind(Enum):
    """What each yielded `RequestOutput` holds of a choice."""

    CUMULATIVE = "cumulative"
    """Everything so far."""
    DELTA = "delta"
    """What is new since the last one; a slow consumer gets bigger ones, never more of them."""
    FINAL_ONLY = "final_only"
    """Everything, once, at the end."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token at one position. `token` is its text as shown to people, `utf8` the bytes it really adds.

    rank: 1 the likeliest of its position.
    """

    token_id: int
    token: str
    utf8: bytes
    logprob: float
    rank: int

    @property
    def decoded_token(self) -> str:
        """vLLM's name for `token`."""
        return self.token


@dataclass(frozen=True, slots=True)
class PositionLogprobs(Mapping[int, TokenLogprob]):
    """The sampled (or, in a prompt, the given) token and the k likeliest ones in order.

    It reads as vLLM's too: a mapping from token ids, the sampled one first.
    """

    sampled: TokenLogprob
    top: list[TokenLogprob]

    def __getitem__(self, token_id: int) -> TokenLogprob:
        for entry in (self.sampled, *self.top):
            if entry.token_id == token_id:
                return entry
        raise KeyError(token_id)

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys([self.sampled.token_id, *(entry.token_id for entry in self.top)]))

    def __len__(self) -> int:
        return len(self.top) + all(entry.token_id != self.sampled.token_id for entry in self.top)


@dataclass(slots=True)
class CompletionOutput:
    """One choice of a request. `finish_reason` is None until its last output.

    stop_reason: the stop string or stop token id that ended it; None for the model's own end of sequence.
    logprobs: None unless asked for; one entry per token in `token_ids`.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The outputs of one request at one moment; `finished` when every choice is.

    prompt_logprobs: entry 0 is None (nothing comes before the first token); on the first output only.
    error: why a request ended with finish reason "error", where requests are run in a list and none may raise for the
    others; `AsyncLLM.generate` raises it instead.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    pooling_output: np.ndarray | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: RoundhouseError | None = None
