"""What `--deterministic` costs: tokens a second with and without it, measured in turn in one run.

`python tests/bench/bench_deterministic.py FOLDER [--dtype bfloat16] [--batch 1 8 32] [--prefill 512] [--rounds 3]`
"""

from __future__ import annotations

import argparse
from pathlib import Path

from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.worker import Worker
from tests.bench.bench_model_runner import BLOCK_SIZE, MAX_TOKENS, decode_rate, prefill_rate


def loaded(folder: Path, dtype: str, batch: int, *, deterministic: bool) -> Worker:
    worker = Worker(
        RunnerConfig(folder, dtype=dtype, device="cpu", max_model_len=MAX_TOKENS, deterministic=deterministic)
    )
    worker.load_model()
    worker.initialize_kv(1 + batch * MAX_TOKENS // BLOCK_SIZE)
    worker.warm_up()
    return worker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--prefill", nargs="*", type=int, default=[512])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    heads = [f"decode B={batch}" for batch in arguments.batch] + [f"prefill {tokens}" for tokens in arguments.prefill]
    print(f"| dtype | | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 2)}")
    for dtype in arguments.dtype:
        workers = {
            name: loaded(arguments.folder, dtype, max(arguments.batch), deterministic=deterministic)
            for name, deterministic in (("usual", False), ("deterministic", True))
        }
        best = {name: [0.0] * len(heads) for name in workers}
        for _ in range(arguments.rounds):
            for column, batch in enumerate(arguments.batch):
                for name, worker in workers.items():
                    best[name][column] = max(best[name][column], decode_rate(worker, batch, arguments.steps))
            for column, tokens in enumerate(arguments.prefill, start=len(arguments.batch)):
                for name, worker in workers.items():
                    best[name][column] = max(best[name][column], prefill_rate(worker, tokens))
        for name, rates in best.items():
            print(f"| {dtype} | {name} | {' | '.join(f'{rate:.0f}' for rate in rates)} |", flush=True)


if __name__ == "__main__":
    main()
