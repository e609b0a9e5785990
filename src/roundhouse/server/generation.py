"""A checked generating request: nothing behind this type looks at a body again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from roundhouse.frontend.outputs import RequestOutput, RequestOutputKind
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.state import ServerState


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text or token ids, one of the two."""

    text: str | None = None
    token_ids: list[int] | None = None
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Generation:
    """One HTTP request to generate `params.n` choices for each prompt.

    created: seconds since 1970. include_usage, continuous_usage: of a stream. num_top_logprobs: None without logprobs.
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

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.params.n

    def start(self, state: ServerState, output_kind: RequestOutputKind) -> list[AsyncGenerator[RequestOutput, None]]:
        """A generator for each prompt; nothing is sent to an engine before the first `anext`."""
        return [
            state.llm.generate(
                prompt.text if prompt.text is not None else prompt.token_ids,
                self.params,
                self.response_id if len(self.prompts) == 1 else f"{self.response_id}-{i}",
                output_kind=output_kind,
                priority=self.priority,
            )
            for i, prompt in enumerate(self.prompts)
        ]
