"""Logprobs as they come from an engine → what a client is shown: per token its text, its bytes, its rank."""

from __future__ import annotations

from collections.abc import Sequence

from roundhouse.frontend.outputs import PositionLogprobs, TokenLogprob
from roundhouse.frontend.token_stream import MAX_CHARACTER_TOKENS, REPLACEMENT, pending_bytes
from roundhouse.model_store.tokenizer import Tokenizer
from roundhouse.protocol.messages import LogprobsLists, PromptLogprobs


class LogprobsProcessor:
    """For one choice. `sampled` is every token id before those of the next call; only the last few are looked at."""

    __slots__ = ("_bytes", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes: dict[int, bytes] = {}

    def positions(self, new: LogprobsLists, before: Sequence[int]) -> list[PositionLogprobs]:
        """One entry per row of `new`; `before` are the last token ids in front of it."""
        return self._positions(new.token_ids, new.logprobs, new.ranks, list(before[-MAX_CHARACTER_TOKENS:]))

    def prompt_positions(self, prompt: PromptLogprobs, first_token_id: int) -> list[PositionLogprobs | None]:
        """One entry per prompt token, the first one None."""
        rows = self._positions(
            prompt.token_ids.tolist(), prompt.logprobs.tolist(), prompt.ranks.tolist(), [first_token_id]
        )
        return [None, *rows]

    def _positions(
        self, token_ids: list[list[int]], logprobs: list[list[float]], ranks: list[int], before: list[int]
    ) -> list[PositionLogprobs]:
        positions: list[PositionLogprobs] = []
        for row_ids, row_logprobs, rank in zip(token_ids, logprobs, ranks, strict=True):
            incomplete = pending_bytes(b"".join(map(self._token_bytes, before)))
            entries = [
                self._entry(token_id, logprob, place, incomplete)
                # The row is the sampled token, then the likeliest ones in order.
                for token_id, logprob, place in zip(row_ids, row_logprobs, [rank, *range(1, len(row_ids))], strict=True)
            ]
            positions.append(PositionLogprobs(entries[0], entries[1:]))
            before = [*before[1 - MAX_CHARACTER_TOKENS :], row_ids[0]]
        return positions

    def _entry(self, token_id: int, logprob: float, rank: int, incomplete: bytes) -> TokenLogprob:
        data = self._token_bytes(token_id)
        return TokenLogprob(token_id, token_text(data, incomplete), data, logprob, rank)

    def _token_bytes(self, token_id: int) -> bytes:
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._tokenizer.token_bytes(token_id)
        return data


def token_text(data: bytes, incomplete: bytes) -> str:
    """The text of a token with bytes `data` behind the `incomplete` character of the tokens before it.

    A token that completes a character shows all of it, one that only begins or continues it nothing, as in the text.
    """
    text = data.decode(errors="replace")
    if REPLACEMENT not in text:
        return text
    whole = incomplete + data
    cut_off = len(pending_bytes(whole))
    return whole[: len(whole) - cut_off].decode(errors="replace")
