"""How many tokens a request took, counted while its outputs pass."""

from __future__ import annotations

from typing import Any

from roundhouse.frontend.outputs import RequestOutput
from roundhouse.server.generation import Generation


class Usage:
    """`completion_tokens` is by choice, prompt-major: the hot path adds to it directly."""

    __slots__ = ("_cached_tokens", "_prompt_tokens", "completion_tokens")

    def __init__(self, generation: Generation) -> None:
        self._prompt_tokens = [0] * len(generation.prompts)
        self._cached_tokens = [0] * len(generation.prompts)
        self.completion_tokens = [0] * generation.num_choices

    def see_prompt(self, prompt_index: int, output: RequestOutput) -> None:
        self._prompt_tokens[prompt_index] = len(output.prompt_token_ids)
        self._cached_tokens[prompt_index] = output.num_cached_tokens

    def total(self) -> dict[str, Any]:
        return _usage(sum(self._prompt_tokens), sum(self.completion_tokens), sum(self._cached_tokens))

    def of_choice(self, prompt_index: int, choice: int) -> dict[str, Any]:
        """So far, for one chunk of a stream."""
        return _usage(
            self._prompt_tokens[prompt_index], self.completion_tokens[choice], self._cached_tokens[prompt_index]
        )


def _usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
