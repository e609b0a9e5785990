"""Tokens a second of a model on the paged runner, without scheduler, sockets or HTTP.

`python tests/bench/bench_model_runner.py FOLDER [--dtype float32 bfloat16] [--batch 1 8 32] [--prefill 512 1024]`
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from roundhouse.protocol.sampling import SamplingParams
from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.worker import Worker
from roundhouse.scheduler.step import NewRequest, SchedulerOutput

PROMPT_TOKENS = 128
BLOCK_SIZE = 16
MAX_TOKENS = 2048
GREEDY = SamplingParams(temperature=0.0)


def request(name: str, num_tokens: int, first_block: int) -> NewRequest:
    blocks = list(range(first_block, first_block + MAX_TOKENS // BLOCK_SIZE))
    tokens = [(7 * place) % 1000 + 10 for place in range(num_tokens)]
    return NewRequest(name, tokens, num_tokens, GREEDY, 0, 0, frozenset(), blocks, 0)


def timed(worker: Worker, plan: SchedulerOutput) -> float:
    started = time.perf_counter()
    worker.execute_model(plan)
    return time.perf_counter() - started


def decode_rate(worker: Worker, batch: int, steps: int) -> float:
    names = [f"{index}" for index in range(batch)]
    for index, name in enumerate(names):
        blocks_each = MAX_TOKENS // BLOCK_SIZE
        worker.execute_model(
            SchedulerOutput([request(name, PROMPT_TOKENS, 1 + index * blocks_each)], {name: PROMPT_TOKENS})
        )
    plan = SchedulerOutput([], dict.fromkeys(names, 1))
    seconds = statistics.median(timed(worker, plan) for _ in range(steps))
    worker.execute_model(SchedulerOutput([], {}, finished=names))
    return batch / seconds


def prefill_rate(worker: Worker, num_tokens: int) -> float:
    seconds: list[float] = []
    for _ in range(3):
        seconds.append(timed(worker, SchedulerOutput([request("a", num_tokens, 1)], {"a": num_tokens})))
        worker.execute_model(SchedulerOutput([], {}, finished=["a"]))
    return num_tokens / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--prefill", nargs="*", type=int, default=[512, 1024])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    heads = [f"decode B={batch}" for batch in arguments.batch] + [f"prefill {tokens}" for tokens in arguments.prefill]
    print(f"| dtype | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for dtype in arguments.dtype:
        worker = Worker(
            RunnerConfig(arguments.folder, dtype=dtype, max_model_len=MAX_TOKENS, num_threads=arguments.threads)
        )
        worker.load_model()
        worker.initialize_kv(1 + max(arguments.batch) * MAX_TOKENS // BLOCK_SIZE)
        worker.warm_up()
        rates = [decode_rate(worker, batch, arguments.steps) for batch in arguments.batch]
        rates += [prefill_rate(worker, tokens) for tokens in arguments.prefill]
        print(f"| {dtype} | {' | '.join(f'{rate:.0f}' for rate in rates)} |")


if __name__ == "__main__":
    main()
