"""Plays the scheduler for a `ModelRunner`: gives out blocks and says how many tokens each step computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from roundhouse.grammar.compiler import GrammarCompiler
from roundhouse.models.causal_lm import CausalLM
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.attention_sdpa import SdpaBackend
from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.kv_store import KVStore
from roundhouse.runner.model_runner import ModelRunner, Sample
from roundhouse.runner.sampler import sample
from roundhouse.scheduler.step import ModelRunnerOutput, NewRequest, SchedulerOutput

GREEDY = SamplingParams(temperature=0.0)


def new_request(
    token_ids: list[int],
    params: SamplingParams = GREEDY,
    *,
    request_id: str = "a",
    num_outputs: int = 0,
    seed: int = 0,
    child_index: int = 0,
    stop_token_ids: frozenset[int] = frozenset(),
    block_ids: list[int] | None = None,
    num_computed_tokens: int = 0,
) -> NewRequest:
    """The last `num_outputs` of `token_ids` are outputs."""
    return NewRequest(
        request_id=request_id,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids) - num_outputs,
        sampling_params=params,
        seed=seed,
        child_index=child_index,
        stop_token_ids=stop_token_ids,
        block_ids=block_ids or [],
        num_computed_tokens=num_computed_tokens,
    )


class RunnerDriver:
    """Blocks are given out scattered: highest and lowest in turn, so that no block table is a straight run."""

    def __init__(self, runner: ModelRunner, *, block_size: int, num_blocks: int) -> None:
        self.runner = runner
        self._block_size = block_size
        free = list(range(1, num_blocks))
        self._free = [free.pop(0 if place % 2 else -1) for place in range(len(free))]
        self._waiting: dict[str, NewRequest] = {}
        self._finished: list[str] = []
        self._blocks: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._fields: dict[str, dict[str, Any]] = {}
        self.token_ids: dict[str, list[int]] = {}
        self.num_prompt_tokens: dict[str, int] = {}
        self.outputs: list[ModelRunnerOutput] = []

    def add(self, request_id: str, prompt: list[int], params: SamplingParams = GREEDY, **fields: Any) -> None:
        self.token_ids[request_id] = list(prompt)
        self.num_prompt_tokens[request_id] = len(prompt) - fields.pop("num_outputs", 0)
        self._fields[request_id] = {"params": params, **fields}
        self._computed[request_id] = 0
        self._blocks[request_id] = []

    def finish(self, request_id: str) -> None:
        self.preempt(request_id)
        del self._computed[request_id]

    def preempt(self, request_id: str) -> None:
        """Gives up the blocks; the next step that names the request sends it whole again."""
        if not self._blocks[request_id]:
            return
        self._finished.append(request_id)
        self._free.extend(self._blocks[request_id])
        self._blocks[request_id] = []
        self._computed[request_id] = 0

    def num_left(self) -> dict[str, int]:
        """Tokens that each request has and that are not computed."""
        return {key: len(self.token_ids[key]) - done for key, done in self._computed.items()}

    def step(self, num_scheduled: dict[str, int]) -> ModelRunnerOutput:
        new_requests: list[NewRequest] = []
        new_blocks: dict[str, list[int]] = {}
        for request_id, count in num_scheduled.items():
            is_new = not self._blocks[request_id]
            needed = -(-(self._computed[request_id] + count) // self._block_size) - len(self._blocks[request_id])
            blocks = [self._free.pop(0) for _ in range(needed)]
            self._blocks[request_id] += blocks
            if is_new:
                new_requests.append(self._new_request(request_id))
            elif blocks:
                new_blocks[request_id] = blocks
            self._computed[request_id] += count
        plan = SchedulerOutput(new_requests, num_scheduled, new_blocks, self._finished)
        self._finished = []
        output = self.runner.execute_model(plan)
        self.outputs.append(output)
        for request_id, token_ids in output.sampled_token_ids.items():
            self.token_ids[request_id] += token_ids
        return output

    def step_all(self, *, chunk: int = 10**9) -> ModelRunnerOutput:
        """One step in which every request computes what it has not, at most `chunk` tokens."""
        return self.step({key: min(chunk, count) for key, count in self.num_left().items()})

    def run(self, num_outputs: int, *, chunk: int = 10**9) -> dict[str, list[int]]:
        """Steps until each request has that many outputs, ending each as it gets there; outputs by request."""
        wanted = list(self._computed)
        while True:
            for request_id in [key for key in self._computed if len(self.output_ids(key)) >= num_outputs]:
                self.finish(request_id)
            if not self._computed:
                break
            self.step_all(chunk=chunk)
        return {request_id: self.output_ids(request_id) for request_id in wanted}

    def output_ids(self, request_id: str) -> list[int]:
        return self.token_ids[request_id][self.num_prompt_tokens[request_id] :]

    def _new_request(self, request_id: str) -> NewRequest:
        fields = dict(self._fields[request_id])
        return new_request(
            list(self.token_ids[request_id]),
            fields.pop("params"),
            request_id=request_id,
            num_outputs=len(self.output_ids(request_id)),
            block_ids=list(self._blocks[request_id]),
            **fields,
        )


def make_runner(
    model: CausalLM,
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    sample: Sample = sample,
    compiler: GrammarCompiler | None = None,
    **config: Any,
) -> RunnerDriver:
    """A `ModelRunner` with the SDPA backend around `model`, and its driver."""
    store = KVStore(model.layers, num_blocks=num_blocks, block_size=block_size, dtype=model.dtype, device=model.device)
    backend = SdpaBackend(store, dtype=model.dtype, device=model.device)
    runner_config = RunnerConfig(Path("unused"), block_size=block_size, **{"max_num_seqs": 8, **config})
    runner = ModelRunner(
        model,
        backend,
        store,
        runner_config,
        max_model_len=model.max_model_len,
        sample=sample,
        compiler=compiler,
    )
    return RunnerDriver(runner, block_size=block_size, num_blocks=num_blocks)
