"""One step's plan and its result: what passes between the scheduler and the model runner. numpy and lists only.

A request is sent whole once (`NewRequest`); after that a step carries what changed. The runner keeps its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roundhouse.protocol.messages import LogprobsLists, PromptLogprobs
from roundhouse.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request that the runner has no row for: its first admission, or its return from preemption.

    token_ids: prompt and outputs so far. block_ids: the whole block table, this step's new blocks included.
    seed: the Philox key of 64 bits. num_output_tokens: how many of `token_ids` are outputs (penalties, min_tokens,
    the sampling position).
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    child_index: int
    stop_token_ids: frozenset[int]
    block_ids: list[int]
    num_computed_tokens: int

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """The plan of one step.

    num_scheduled_tokens: by request id, in the order of the rows; every scheduled request, new ones included.
    new_blocks: ids appended to the block tables of requests that the runner knows; absent when there are none.
    finished: ended, aborted or preempted since the last step: the runner drops their rows, before it reads the rest.
    A request samples in this step exactly when its computed tokens reach its last token.
    """

    new_requests: list[NewRequest]
    num_scheduled_tokens: dict[str, int]
    new_blocks: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    finished: list[str] = field(default_factory=list[str])

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """The result of one step.

    sampled_token_ids: of each request that sampled in this step; a request still in its prompt is absent.
    logprobs: of those that asked; one row per sampled token. prompt_logprobs: of those that asked, once, in the step
    that completes the prompt, all rows of all its chunks together.
    failed: requests whose own parameters broke the sampler, with a sentence each; they have no token in this step.
    ended: requests with a grammar whose token of this step is an end of sequence: nothing may follow it.
    """

    sampled_token_ids: dict[str, list[int]]
    logprobs: dict[str, LogprobsLists] = field(default_factory=dict[str, LogprobsLists])
    prompt_logprobs: dict[str, PromptLogprobs] = field(default_factory=dict[str, PromptLogprobs])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    ended: list[str] = field(default_factory=list[str])
