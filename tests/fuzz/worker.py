"""`python -m tests.fuzz.worker TARGET FOLDER --seconds 30`: one target in a process of its own, which may be killed.

Atheris guides the search by the branches that inputs take; where it is not installed, the corpus is mutated blindly.
Each second a line of JSON on standard output says how far it is. An input that fails is written to FOLDER as crash-…
and ends the process with code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from tests.fuzz.catalogue import CORPUS, inputs_of, load
from tests.fuzz.target import Target, execute

try:
    import atheris
except ImportError:
    atheris: Any = None

MAX_MEMORY_BYTES = 2 * 2**30
"""Of the address space that a target may add: an input that asks for more fails with a MemoryError."""

HANG_S = 20
"""libFuzzer ends the process after so long in one input: code that never comes back to the interpreter as well."""

REPORT_EVERY_S = 1.0


class Meter:
    """Counts executions, and tells of them on a file descriptor that the target's own output does not reach."""

    def __init__(self, engine: str, descriptor: int) -> None:
        self.num_executions = 0
        self._engine = engine
        self._descriptor = descriptor
        self._began = self._told_at = time.monotonic()

    def count(self) -> None:
        self.num_executions += 1
        if time.monotonic() - self._told_at >= REPORT_EVERY_S:
            self.tell()

    def tell(self) -> None:
        self._told_at = time.monotonic()
        seconds = self._told_at - self._began
        facts = {"engine": self._engine, "executions": self.num_executions, "seconds": seconds}
        os.write(self._descriptor, msgspec.json.encode(facts) + b"\n")


def guarded(run: Callable[[bytes], Any], folder: Path, meter: Meter) -> Callable[[bytes], None]:
    """`run` whose first failure is written down and ends the process: the state behind it may be anything."""

    def check(data: bytes) -> None:
        try:
            run(data)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            crash = folder / f"crash-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"
            crash.write_bytes(data)
            crash.with_name(f"{crash.name}.txt").write_text(traceback.format_exc())
            meter.tell()
            os._exit(1)
        meter.count()

    return check


def search_blindly(target: Target, check: Callable[[bytes], None], seconds: float, seed: int) -> None:
    inputs = list(inputs_of(target.name).values())
    end = time.monotonic() + seconds
    rng = Random(seed)
    for data in inputs:
        check(data)
    while time.monotonic() < end:
        data = rng.choice(inputs)
        for _ in range(rng.randrange(1, 6)):
            data = target.mutate(data, rng)
        check(data)


def search_guided(target: Target, check: Callable[[bytes], None], folder: Path, seconds: float, seed: int) -> None:
    """Does not return: libFuzzer ends the process. What it finds worth keeping goes to FOLDER/corpus."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.randrange(5) == 0:
            return atheris.Mutate(data, max_size)
        return target.mutate(data, rng)[:max_size]

    found = folder / "corpus"
    found.mkdir(exist_ok=True)
    options = {
        "max_total_time": max(1, int(seconds)),
        "seed": seed,
        "max_len": 2**20,
        "timeout": HANG_S,
        "rss_limit_mb": 0,
        "artifact_prefix": f"{folder}/",
        "verbosity": 0,
        "print_final_stats": 0,
    }
    argv = [
        sys.argv[0],
        *(f"-{name}={value}" for name, value in options.items()),
        str(found),
        str(CORPUS / target.name),
    ]
    atheris.Setup(argv, check, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.worker")
    parser.add_argument("target")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--input", type=Path, help="run this input alone")
    arguments = parser.parse_args()
    logging.disable()
    reports = os.dup(1)
    os.dup2(2, 1)
    if atheris is None or arguments.input:
        target = load(arguments.target)
    else:
        with atheris.instrument_imports(include=["roundhouse"]):
            target = load(arguments.target)
    if arguments.input:
        execute(target, arguments.input.read_bytes())
        return 0
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_MEMORY_BYTES,) * 2)
    meter = Meter("blind" if atheris is None else "atheris", reports)
    check = guarded(lambda data: execute(target, data), arguments.folder, meter)
    if atheris is None:
        search_blindly(target, check, arguments.seconds, arguments.seed)
    else:
        search_guided(target, check, arguments.folder, arguments.seconds, arguments.seed)
    meter.tell()
    return 0


if __name__ == "__main__":
    sys.exit(main())
