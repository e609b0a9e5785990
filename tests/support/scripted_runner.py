"""A model runner without a model: it keeps rows as a real one does and reads every token back through the block table.

Its "model" is a hash. Each token leaves in its slot a value made of the value before it and itself, as keys and values
of a deep model depend on all that came before; a sampled token is a hash of all values of its request, read slot by
slot. So a block that is lost, stale, written by two or shared by mistake changes the tokens. What no real runner could
survive (a slot written for two, a block table that is too short) is an AssertionError at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from roundhouse.protocol.messages import LogprobsLists, PromptLogprobs
from roundhouse.scheduler.step import ModelRunnerOutput, NewRequest, SchedulerOutput


def _hash(*numbers: int) -> int:
    raw = b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)
    return int.from_bytes(blake2b(raw, digest_size=7).digest(), "little")


def cache_value(previous: int, token_id: int, position: int) -> int:
    """What the token at `position` leaves in its slot; `previous` is the value before it, 0 before the first."""
    return _hash(previous, token_id, position)


def sample(values: Sequence[int], *, seed: int, child_index: int, vocab_size: int) -> int:
    """The token that follows the tokens that left `values`."""
    return _hash(seed - 2**63, child_index, *values) % vocab_size


def continue_prompt(
    prompt: Sequence[int], num_tokens: int, *, seed: int = 0, child_index: int = 0, vocab_size: int = 50
) -> list[int]:
    """What the model says to `prompt`, without any cache."""
    values: list[int] = []
    token_ids = list(prompt)
    while True:
        for position in range(len(values), len(token_ids)):
            values.append(cache_value(values[-1] if values else 0, token_ids[position], position))
        if len(token_ids) == len(prompt) + num_tokens:
            return token_ids[len(prompt) :]
        token_ids.append(sample(values, seed=seed, child_index=child_index, vocab_size=vocab_size))


@dataclass
class _Row:
    request: NewRequest
    token_ids: list[int]
    block_ids: list[int]
    num_computed_tokens: int
    prompt_positions: list[int] = field(default_factory=list)


class ScriptedRunner:
    """`execute_model` as the real runner's. `script`: outputs by request id instead of the model's, the k-th as k-th.

    fail: request ids, with a sentence each, that the sampler chokes on when they would sample.
    """

    def __init__(
        self,
        *,
        block_size: int = 4,
        vocab_size: int = 50,
        script: Mapping[str, Sequence[int]] | None = None,
        fail: Mapping[str, str] | None = None,
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.script = dict(script or {})
        self.fail = dict(fail or {})
        self.rows: dict[str, _Row] = {}
        self.slots: dict[int, int] = {}
        """Value by slot; it outlives the rows, as device memory does."""

    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self._apply(plan)
        self._compute(plan)
        result = ModelRunnerOutput(sampled_token_ids={})
        for request_id in plan.num_scheduled_tokens:
            row = self.rows[request_id]
            if row.num_computed_tokens < len(row.token_ids):
                continue
            if request_id in self.fail:
                result.failed[request_id] = self.fail[request_id]
                continue
            self._sample(request_id, row, result)
        return result

    def _apply(self, plan: SchedulerOutput) -> None:
        for request_id in plan.finished:
            del self.rows[request_id]
        for new in plan.new_requests:
            assert new.request_id not in self.rows, f"{new.request_id} has a row"
            assert new.request_id in plan.num_scheduled_tokens, f"{new.request_id} is new and not scheduled"
            self.rows[new.request_id] = _Row(new, list(new.token_ids), list(new.block_ids), new.num_computed_tokens)
        for request_id, block_ids in plan.new_blocks.items():
            self.rows[request_id].block_ids.extend(block_ids)

    def _compute(self, plan: SchedulerOutput) -> None:
        """All rows write before any row samples, as one flattened batch does within each layer."""
        written: dict[int, str] = {}
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            assert num_tokens > 0, f"{request_id} is scheduled for nothing"
            row = self.rows[request_id]
            start, stop = row.num_computed_tokens, row.num_computed_tokens + num_tokens
            assert stop <= len(row.token_ids), f"{request_id} is scheduled past its tokens"
            for position in range(start, stop):
                slot = self._slot(row, position)
                assert slot not in written, f"slot {slot} is written for {written[slot]} and {request_id}"
                written[slot] = request_id
                previous = self.slots[self._slot(row, position - 1)] if position else 0
                self.slots[slot] = cache_value(previous, row.token_ids[position], position)
            row.num_computed_tokens = stop
            row.prompt_positions += range(start, min(stop, row.request.num_prompt_tokens))
        self._check_nothing_shared_was_written(written)

    def _check_nothing_shared_was_written(self, written: Mapping[int, str]) -> None:
        for block_id in {slot // self.block_size for slot in written}:
            assert block_id > 0, "the null block was written"
            owners = [request_id for request_id, row in self.rows.items() if block_id in row.block_ids]
            assert len(owners) == 1, f"block {block_id} of {owners} was written"

    def _sample(self, request_id: str, row: _Row, result: ModelRunnerOutput) -> None:
        num_outputs = len(row.token_ids) - row.request.num_prompt_tokens
        if request_id in self.script:
            token_id = self.script[request_id][num_outputs]
        else:
            values = [self.slots[self._slot(row, position)] for position in range(row.num_computed_tokens)]
            token_id = sample(
                values, seed=row.request.seed, child_index=row.request.child_index, vocab_size=self.vocab_size
            )
            if num_outputs < row.request.sampling_params.min_tokens:
                while token_id in row.request.stop_token_ids:
                    token_id = (token_id + 1) % self.vocab_size
        result.sampled_token_ids[request_id] = [token_id]
        if row.request.sampling_params.logprobs is not None:
            result.logprobs[request_id] = LogprobsLists([[token_id]], [[-0.5]], [1])
        if row.request.sampling_params.prompt_logprobs is not None and num_outputs == row.request.num_output_tokens:
            result.prompt_logprobs[request_id] = self._prompt_logprobs(row)
        row.token_ids.append(token_id)

    def _prompt_logprobs(self, row: _Row) -> PromptLogprobs:
        num_prompt_tokens = row.request.num_prompt_tokens
        assert row.prompt_positions == list(range(num_prompt_tokens)), "a row of the prompt's logprobs is missing"
        token_ids = np.array(row.token_ids[1:num_prompt_tokens], np.int32)[:, None]
        return PromptLogprobs(token_ids, np.full(token_ids.shape, -0.5, np.float32), np.ones(len(token_ids), np.int32))

    def _slot(self, row: _Row, position: int) -> int:
        block, offset = divmod(position, self.block_size)
        assert block < len(row.block_ids), f"{row.request.request_id} has no block for position {position}"
        return row.block_ids[block] * self.block_size + offset
