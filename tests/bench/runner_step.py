"""What a step of the model runner costs apart from the model: `python -m tests.bench.runner_step [--profile]`.

The model is a stub that returns the same logits again and again, so what is left is the rows, the attention metadata,
the sampler and the output. With the vocabulary of the default model the sampler's own kernels (max, topk, logsumexp
over 49,152 logits a row) are in it; with a small one they vanish, and Python is left alone.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from roundhouse.models.inspection import LayerShape
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.attention_sdpa import SdpaBackend
from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.kv_store import KVStore
from roundhouse.runner.model_runner import ModelRunner
from roundhouse.scheduler.step import NewRequest, SchedulerOutput

GREEDY = SamplingParams(temperature=0.0)
SAMPLINGS = {
    "greedy": GREEDY,
    "temperature 0.7, top_p 0.9": SamplingParams(temperature=0.7, top_p=0.9),
    "temperature 1": SamplingParams(temperature=1.0),
    "greedy, 5 logprobs": SamplingParams(temperature=0.0, logprobs=5),
    "greedy, penalties": SamplingParams(temperature=0.0, repetition_penalty=1.1),
}
SMALL_VOCABULARY = 128
REAL_VOCABULARY = 49152
PROMPT_TOKENS = 200
BLOCK_SIZE = 16
LAYER = LayerShape(1, 4, 4, 1, window=None, has_softcap=False, has_sinks=False)


class StubModel:
    """Logits as steep as a language model's: a few tokens hold nearly all of the mass."""

    device = torch.device("cpu")

    def __init__(self, num_requests: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        random = torch.Generator().manual_seed(0)
        self._logits = torch.randn(num_requests, vocab_size, generator=random) * 2
        likely = torch.randint(vocab_size, (num_requests, 40), generator=random)
        self._logits.scatter_(1, likely, torch.linspace(16, 6, 40).expand(num_requests, -1))
        self.seconds = 0.0

    def forward(self, token_ids: Any, positions: Any, attention: Any, logits_indices: torch.Tensor) -> torch.Tensor:
        # What all layers share of a decode step is the step's cost; the attention itself is the model's.
        attention.plans(None)
        started = time.perf_counter()
        logits = self._logits[: len(logits_indices)].clone()
        self.seconds = time.perf_counter() - started
        return logits

    def logits_of_last_forward(self, indices: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forget_last_forward(self) -> None:
        pass


def step_us(
    num_requests: int, vocab_size: int, params: SamplingParams, *, num_steps: int = 200, profile: bool = False
) -> float:
    """Microseconds a decode step, the median, the stub's own forward pass taken off."""
    model = StubModel(num_requests, vocab_size)
    store = KVStore([LAYER], num_blocks=2, block_size=BLOCK_SIZE, dtype=torch.float32, device=model.device)
    backend = SdpaBackend(store, dtype=torch.float32, device=model.device)
    config = RunnerConfig(Path("unused"), block_size=BLOCK_SIZE, max_num_seqs=num_requests)
    runner = ModelRunner(model, backend, store, config, max_model_len=2048)
    names = [f"request-{index}" for index in range(num_requests)]
    blocks = [1] * (2048 // BLOCK_SIZE)
    prompt = [token % vocab_size for token in range(PROMPT_TOKENS)]
    runner.execute_model(
        SchedulerOutput(
            [NewRequest(name, prompt, PROMPT_TOKENS, params, 7, 0, frozenset(), blocks, 0) for name in names],
            dict.fromkeys(names, PROMPT_TOKENS),
        )
    )
    plan = SchedulerOutput([], dict.fromkeys(names, 1))
    for _ in range(10):
        runner.execute_model(plan)
    seconds: list[float] = []
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    for _ in range(num_steps):
        started = time.perf_counter()
        runner.execute_model(plan)
        seconds.append(time.perf_counter() - started - model.seconds)
    profiler.disable()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    return statistics.median(seconds) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| sampling | vocabulary | 1 stream, µs | 64 streams, µs |\n|---|---|---|---|")
    for name, params in SAMPLINGS.items():
        for vocab_size in (SMALL_VOCABULARY, REAL_VOCABULARY):
            columns = [
                step_us(count, vocab_size, params, num_steps=arguments.steps, profile=arguments.profile)
                for count in (1, 64)
            ]
            print(f"| {name} | {vocab_size} | {columns[0]:.0f} | {columns[1]:.0f} |")


if __name__ == "__main__":
    main()
