"""Engine cores that run deterministically, and runs of requests through them whose every bit is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from roundhouse.engine.build import BuiltEngine, build_engine
from roundhouse.engine.config import EngineConfig
from roundhouse.engine.core import EngineCore
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import EngineCoreRequest
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.config import RunnerConfig
from tests.support.core_driver import MOST_STEPS

CLIENT = ClientIndex(1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request. delivered: outputs of an earlier attempt."""

    prompt: list[int]
    params: SamplingParams
    delivered: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Bits:
    """token_ids, and of each: ids and logprobs of the likeliest, its own first, in full precision."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[list[int], list[float], int]] = field(default_factory=list)
    num_cached_tokens: int = 0

    def since(self, index: int) -> tuple[list[int], list[tuple[list[int], list[float], int]]]:
        return self.token_ids[index:], self.logprobs[index:]


def deterministic_engine(
    folder: Path,
    *,
    dtype: str = "bfloat16",
    num_blocks: int = 1024,
    block_size: int = 16,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 512,
    max_model_len: int | None = 1024,
    num_threads: int = 2,
    prefix_caching: bool = True,
) -> BuiltEngine:
    runner = RunnerConfig(
        model_path=folder,
        dtype=dtype,
        device="cpu",
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len,
        num_threads=num_threads,
        deterministic=True,
    )
    return build_engine(EngineConfig(runner=runner, num_blocks=num_blocks, enable_prefix_caching=prefix_caching))


def run_all(core: EngineCore, wanted: Sequence[Wanted]) -> list[Bits]:
    """Adds all at once and steps until every one has ended."""
    found = {str(index): Bits() for index in range(len(wanted))}
    for index, one in enumerate(wanted):
        request = EngineCoreRequest(
            str(index), one.prompt, one.params, 0.0, attempt=1, output_token_ids=list(one.delivered)
        )
        assert core.add_request(request, CLIENT) is None
    for _ in range(MOST_STEPS):
        if not core.has_requests():
            return list(found.values())
        for message in core.step().values():
            for output in message.outputs:
                bits = found[output.request_id]
                bits.token_ids += output.new_token_ids
                bits.num_cached_tokens += output.num_cached_tokens
                if output.new_logprobs is not None:
                    rows = output.new_logprobs
                    bits.logprobs += zip(rows.token_ids, rows.logprobs, rows.ranks, strict=True)
    raise AssertionError("the requests do not end")
