"""A checked generating request: nothing behind this type looks at a body again."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from roundhouse.frontend.outputs import RequestOutput, RequestOutputKind
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.state import ServerState


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text or token ids, one of the two."""

    text: str | None = None
    token_ids: list[int] | None = None
    add_special_tokens: bool = True

    def for_llm(self, cache_salt: str | None) -> dict[str, Any]:
        content = {"prompt_token_ids": self.token_ids} if self.text is None else {"prompt": self.text}
        return content if cache_salt is None else {**content, "cache_salt": cache_salt}


@dataclass(frozen=True, slots=True)
class Generation:
    """One HTTP request to generate `params.n` choices for each prompt.

    created: seconds since 1970. include_usage, continuous_usage: of a stream.
    field_names: what this route calls a field that errors from further in name otherwise.
    """

    response_id: str
    created: int
    model: str
    prompts: list[Prompt]
    params: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    field_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.params.n

    def start(self, state: ServerState, output_kind: RequestOutputKind) -> list[AsyncGenerator[RequestOutput, None]]:
        """A generator for each prompt; nothing is sent to an engine before the first `anext`.

        A client may use one id for several requests at once, so inside each gets an id of its own.
        """
        inner_id = f"{self.response_id}-{state.new_id()[:8]}"
        return [
            state.llm.generate(
                prompt.for_llm(self.cache_salt),
                self.params,
                inner_id if len(self.prompts) == 1 else f"{inner_id}-{i}",
                output_kind=output_kind,
                tokenization_kwargs={"add_special_tokens": prompt.add_special_tokens},
                priority=self.priority,
            )
            for i, prompt in enumerate(self.prompts)
        ]
