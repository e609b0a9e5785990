"""`ParentRequest`: what the client asked for once. Its n choices run as n requests of one sample each, its children."""

from __future__ import annotations

from roundhouse.frontend.collector import RequestOutputCollector
from roundhouse.frontend.outputs import CompletionOutput, PositionLogprobs, RequestOutput, RequestOutputKind
from roundhouse.frontend.request_state import RequestState
from roundhouse.protocol.messages import EngineCoreOutput


def child_id(parent_id: str, index: int, n: int) -> str:
    """The id that engines know a choice by; an only child has its parent's."""
    return parent_id if n == 1 else f"{index}_{parent_id}"


class ParentRequest:
    """Joins the outputs of its children into one stream; `children` are those that did not end, by their ids.

    num_cached_tokens stands in every output from its arrival on, prompt_logprobs in the next one only.
    """

    __slots__ = (
        "_finished_choices",
        "_kind",
        "_prompt",
        "children",
        "collector",
        "external_id",
        "num_cached_tokens",
        "num_choices",
        "prompt_logprobs",
        "prompt_token_ids",
    )

    def __init__(
        self,
        external_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        kind: RequestOutputKind,
        collector: RequestOutputCollector,
        num_choices: int = 1,
    ) -> None:
        self.external_id = external_id
        self.num_choices = num_choices
        self.prompt_token_ids = prompt_token_ids
        self.collector = collector
        self.children: dict[str, RequestState] = {}
        self.num_cached_tokens = 0
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None
        self._prompt = prompt
        self._kind = kind
        self._finished_choices: list[CompletionOutput] = []

    def emit(self, child: RequestState, output: EngineCoreOutput | None = None) -> None:
        """Puts what is new about `child` into the collector, if the caller wants it now; lets go of one that ended."""
        choice = child.take_output(self._kind)
        if child.finish_reason is not None:
            del self.children[child.request_id]
        if choice is None:
            return
        finished = not self.children
        choices = [choice]
        if self._kind is RequestOutputKind.FINAL_ONLY:
            self._finished_choices.append(choice)
            if not finished:
                return
            choices = sorted(self._finished_choices, key=lambda choice: choice.index)
        self.collector.put(self.make_request_output(choices, finished, output))

    def make_request_output(
        self, choices: list[CompletionOutput], finished: bool, output: EngineCoreOutput | None
    ) -> RequestOutput:
        prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs, None
        pooling_output = None if output is None else output.pooling_output
        return RequestOutput(
            self.external_id,
            self._prompt,
            self.prompt_token_ids,
            choices if pooling_output is None else [],
            finished,
            prompt_logprobs,
            self.num_cached_tokens,
            pooling_output,
            None if output is None else output.kv_transfer_params,
        )
