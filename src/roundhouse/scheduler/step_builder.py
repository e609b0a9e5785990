"""`StepBuilder`: a `SchedulerOutput` in the making, and the step's budget."""

from __future__ import annotations

from dataclasses import dataclass, field

from roundhouse.protocol.sampling import StructuredOutputsParams
from roundhouse.scheduler.request import Request
from roundhouse.scheduler.step import NewRequest, SchedulerOutput


@dataclass(slots=True)
class StepBuilder:
    """token_budget: tokens that the step may still compute.

    A step begins one grammar. The runner compiles it (`runner.guided_rows`), most of a second at worst, and the streams
    of all others wait meanwhile: of many that come together each waits for a step of its own, and those streams get
    their tokens in between. Requests of the same grammar begin together: what was compiled is kept.
    """

    token_budget: int
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict[str, int])
    new_requests: list[NewRequest] = field(default_factory=list[NewRequest])
    new_blocks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    has_preempted: bool = False
    grammar: StructuredOutputsParams | None = None

    def can_begin(self, grammar: StructuredOutputsParams | None) -> bool:
        """Whether a request of that grammar, None for one without, may start in this step."""
        return grammar is None or self.grammar is None or grammar == self.grammar

    def continue_request(self, request_id: str, num_tokens: int, new_block_ids: list[int]) -> None:
        """A request that the runner has a row for computes `num_tokens` more."""
        self.num_scheduled_tokens[request_id] = num_tokens
        self.token_budget -= num_tokens
        if new_block_ids:
            self.new_blocks[request_id] = new_block_ids

    def start_request(self, request: Request, num_tokens: int, block_ids: list[int]) -> None:
        """The runner gets a row for `request`, whole. It gets copies: the scheduler's lists go on changing.

        The step can begin its grammar.
        """
        self.grammar = request.sampling_params.structured_outputs or self.grammar
        self.num_scheduled_tokens[request.request_id] = num_tokens
        self.token_budget -= num_tokens
        self.new_requests.append(
            NewRequest(
                request_id=request.request_id,
                token_ids=request.token_ids.copy(),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling_params=request.sampling_params,
                seed=request.seed,
                child_index=request.child_index,
                stop_token_ids=request.stop_token_ids,
                block_ids=block_ids,
                num_computed_tokens=request.num_computed_tokens,
            )
        )

    def take_back(self, request_id: str) -> None:
        """A preempted request computes nothing in this step; what it got goes to others."""
        self.has_preempted = True
        self.token_budget += self.num_scheduled_tokens.pop(request_id, 0)
        self.new_blocks.pop(request_id, None)

    def build(self, finished: list[str]) -> SchedulerOutput:
        """The plan; `finished` are the requests whose rows the runner drops."""
        return SchedulerOutput(self.new_requests, self.num_scheduled_tokens, self.new_blocks, finished)
