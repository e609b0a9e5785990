"""Logprobs in the two shapes of OpenAI's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roundhouse.frontend.outputs import PositionLogprobs, TokenLogprob

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say; vLLM's value."""


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """`top_logprobs` holds the likeliest tokens alone, as many as were asked for; the chosen one stands above them."""
    content = [
        {**_chat_token(position.sampled), "top_logprobs": [_chat_token(token) for token in position.top]}
        for position in positions
    ]
    return {"content": content, "refusal": None}


def _chat_token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": _finite(token.logprob), "bytes": list(token.utf8)}


class CompletionLogprobs:
    """Of one choice, its chunks in order: `text_offset` goes on from chunk to chunk."""

    __slots__ = ("_offset", "_token_text")

    def __init__(self, token_text: Callable[[int], str]) -> None:
        self._offset = 0
        self._token_text = token_text

    def prompt(self, token_ids: Sequence[int], positions: Sequence[PositionLogprobs | None]) -> dict[str, Any]:
        """Of an echoed prompt. Nothing comes before its first token, which thus has no logprob."""
        return self._shape(list(zip((self._token_text(token_id) for token_id in token_ids), positions, strict=True)))

    def output(self, positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
        return self._shape([(position.sampled.token, position) for position in positions])

    def _shape(self, entries: list[tuple[str, PositionLogprobs | None]]) -> dict[str, Any]:
        offsets: list[int] = []
        for text, _ in entries:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "text_offset": offsets,
            "token_logprobs": [
                None if position is None else _finite(position.sampled.logprob) for _, position in entries
            ],
            "tokens": [text for text, _ in entries],
            "top_logprobs": [None if position is None else _top_by_text(position) for _, position in entries],
        }


def joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The logprobs of a prompt and of what follows it."""
    return {name: first[name] + second[name] for name in first}


def _top_by_text(position: PositionLogprobs) -> dict[str, float]:
    """The chosen token first, so up to k + 1 entries; tokens of the same text (parts of characters) keep the first."""
    by_text: dict[str, float] = {}
    for token in (position.sampled, *position.top):
        by_text.setdefault(token.token, _finite(token.logprob))
    return by_text


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
