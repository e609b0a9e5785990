"""`python -m tests.fuzz.run --minutes 10`: every decoder of a stranger's bytes, under inputs that are made to break it.

The minutes are shared by the targets, one after the other, each in a process of its own. An input that breaks a promise
is kept as build/fuzz/<target>/crash-…, with the command that repeats it, and the next process goes on with another
seed; the exit code is then 1. Once it is mended, the input belongs in tests/fuzz/corpus/<target>, where `make test`
replays it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from tests.fuzz.catalogue import PLACES, inputs_of

MAX_CRASHES = 5
"""Of one target; after so many its time goes to the others."""


@dataclass(slots=True)
class Result:
    """Of one target. crashes: the inputs that failed, each with the last line of its story."""

    engine: str = "-"
    num_executions: int = 0
    seconds: float = 0.0
    num_found: int = 0
    crashes: dict[Path, str] = field(default_factory=dict)


def fuzz(target: str, folder: Path, seconds: float, seed: int, console: Console) -> Result:
    folder.mkdir(parents=True, exist_ok=True)
    result = Result()
    end = time.monotonic() + seconds
    while (left_s := end - time.monotonic()) > 1 and len(result.crashes) < MAX_CRASHES:
        before = set(_crashes_in(folder))
        run_worker(target, folder, left_s, seed, result, console)
        fresh = sorted(set(_crashes_in(folder)) - before)
        if not fresh:
            break
        for crash in fresh:
            result.crashes[crash] = _story_of(crash)
            _tell_crash(console, target, crash, result.crashes[crash])
        seed += 1
    result.num_found = len(inputs_of(target)) + len(list((folder / "corpus").glob("*")))
    return result


def run_worker(target: str, folder: Path, seconds: float, seed: int, result: Result, console: Console) -> None:
    """One process, until its time is over or an input ended it; its counts go into `result`."""
    command = [sys.executable, "-m", "tests.fuzz.worker", target, str(folder)]
    command += ["--seconds", str(seconds), "--seed", str(seed)]
    done, done_s = result.num_executions, result.seconds
    with (
        (folder / "worker.log").open("ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as worker,
    ):
        assert worker.stdout is not None
        for line in worker.stdout:
            report: dict[str, Any] = msgspec.json.decode(line)
            result.engine = report["engine"]
            result.num_executions, result.seconds = done + report["executions"], done_s + report["seconds"]
            if console.is_terminal:
                console.print(_progress(target, result, seconds), end="\r", highlight=False)
    if console.is_terminal:
        console.print()
    if worker.returncode and not list(_crashes_in(folder)):
        raise SystemExit(f"the worker of {target} ended with {worker.returncode}; see {folder / 'worker.log'}")


def _progress(target: str, result: Result, seconds: float) -> str:
    return (
        f"{target}: {result.seconds:.0f} of {seconds:.0f} s, {result.num_executions} executions,"
        f" {len(result.crashes)} failures"
    )


def _crashes_in(folder: Path) -> list[Path]:
    kinds = ("crash-*", "timeout-*", "oom-*", "leak-*")
    return [path for kind in kinds for path in folder.glob(kind) if path.suffix != ".txt"]


def _story_of(crash: Path) -> str:
    story = crash.with_name(f"{crash.name}.txt")
    lines = story.read_text().strip().splitlines() if story.exists() else []
    return lines[-1][:300] if lines else "the process was ended"


def _tell_crash(console: Console, target: str, crash: Path, story: str) -> None:
    console.print(f"{target} FAILED: {story}", markup=False, highlight=False)
    repeat = f"{sys.executable} -m tests.fuzz.worker {target} {crash.parent} --input {crash}"
    console.print(f"  again: {repeat}", markup=False, highlight=False, soft_wrap=True)


def as_table(results: dict[str, Result]) -> Table:
    table = Table("target", "engine", "executions", "executions/s", "corpus", "failures", title="Fuzzing")
    for name, result in results.items():
        speed = result.num_executions / result.seconds if result.seconds else 0.0
        table.add_row(
            name,
            result.engine,
            f"{result.num_executions}",
            f"{speed:.0f}",
            f"{result.num_found}",
            f"{len(result.crashes)}",
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Inputs made to break the decoders.")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--targets", nargs="*", choices=list(PLACES), default=list(PLACES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder for what fails and what is found")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140)
    seconds = arguments.minutes * 60 / len(arguments.targets)
    results: dict[str, Result] = {}
    for name in arguments.targets:
        results[name] = fuzz(name, arguments.out / name, seconds, arguments.seed, console)
        console.print(_progress(name, results[name], seconds), highlight=False)
    console.print(as_table(results))
    return 1 if any(result.crashes for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
