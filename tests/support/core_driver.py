"""Drives an `EngineCore` without sockets: requests in, everything that came of them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roundhouse.engine.build import build_engine
from roundhouse.engine.config import EngineConfig
from roundhouse.engine.core import EngineCore
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import EngineCoreRequest
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from roundhouse.runner.config import RunnerConfig

CLIENT = ClientIndex(1)
MOST_STEPS = 100_000


@dataclass(slots=True)
class Result:
    """All outputs of one request. logprobs: the sampled token's, if they were asked for."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0


def float32_core(
    folder: Path,
    *,
    num_blocks: int = 2048,
    block_size: int = 16,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 2048,
    max_model_len: int = 2048,
    prefix_caching: bool = True,
) -> EngineCore:
    runner = RunnerConfig(
        model_path=folder,
        dtype="float32",
        device="cpu",
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
    )
    return build_engine(EngineConfig(runner=runner, num_blocks=num_blocks, enable_prefix_caching=prefix_caching)).core


def run(
    core: EngineCore,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    *,
    after_step: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Adds all prompts at once and steps until every one has ended."""
    results = {str(index): Result() for index in range(len(prompts))}
    for index, prompt in enumerate(prompts):
        refusal = core.add_request(EngineCoreRequest(str(index), list(prompt), params, 0.0), CLIENT)
        assert refusal is None, refusal
    for _ in range(MOST_STEPS):
        if not core.has_requests():
            return list(results.values())
        for message in core.step().values():
            for output in message.outputs:
                result = results[output.request_id]
                assert result.finish_reason is None, "an output after the end"
                assert output.first_token_index == len(result.token_ids)
                result.token_ids += output.new_token_ids
                if output.new_logprobs is not None:
                    result.logprobs += [row[0] for row in output.new_logprobs.logprobs]
                result.num_cached_tokens += output.num_cached_tokens
                result.finish_reason = output.finish_reason
        after_step()
    raise AssertionError("the requests do not end")
