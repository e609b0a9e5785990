"""`python -m tests.soak.run --minutes 20`: many clients of every manner for a long time, and what is left of them.

Everything that a server promises about leaving no trace: memory, open files and threads of every process stay where
they were, every gauge falls to zero with the last request, every client that behaves gets its whole answer and every
other one what it deserves. Writes `processes.csv`, `metrics.csv`, `server.log` and `report.json`; exits with 1 when a
promise is broken. Ctrl-C ends the load early and still reports; memory is judged from some six minutes on.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from tests.soak.exposition import Scrape
from tests.soak.load import Soak
from tests.soak.memory import MIN_POOL_TURNS
from tests.soak.promises import judge
from tests.soak.recording import CsvRecorder
from tests.soak.report import (
    CACHED,
    GENERATED,
    PREEMPTED,
    PROMPTED,
    Report,
    as_json,
    as_tables,
    judge_all_memory,
    speed_of,
)
from tests.soak.server import BLOCK_SIZE, MAX_NUM_SEQS, NUM_KV_BLOCKS, SoakServer

PROGRESS_EVERY_S = 30.0
RUNNING = "roundhouse_num_requests_running"
WAITING = "roundhouse_num_requests_waiting"


class Progress:
    """One line that is written again and again; a new line now and then where that is not possible."""

    def __init__(self, console: Console, soak: Soak, seconds: float) -> None:
        self._console = console
        self._soak = soak
        self._seconds = seconds
        self._next_s = 0.0

    def __call__(self, at_s: float, scrape: Scrape | None) -> None:
        if not self._console.is_terminal and at_s < self._next_s:
            return
        self._next_s = at_s + PROGRESS_EVERY_S
        tally = self._soak.tally
        line = f"{at_s:5.0f} of {self._seconds:.0f} s, {tally.total()} requests, {tally.total('wrong')} wrong"
        if scrape is not None:
            running, waiting = (_sum(scrape, name) for name in (RUNNING, WAITING))
            line += f", {scrape.counters[GENERATED]:.0f} tokens, {running:.0f} running, {waiting:.0f} waiting"
        self._console.print(line, end="\r" if self._console.is_terminal else "\n", highlight=False)


def _sum(scrape: Scrape, name: str) -> float:
    return sum(value for series, value in scrape.gauges.items() if series.partition("{")[0] == name)


async def soak(server: SoakServer, recorder: CsvRecorder, arguments: argparse.Namespace, console: Console) -> Report:
    seconds = arguments.minutes * 60
    load = Soak(
        server, recorder, model=arguments.model, seed=arguments.seed, streams=arguments.streams, seconds=seconds
    )
    pool_tokens = arguments.engines * NUM_KV_BLOCKS * BLOCK_SIZE
    num_rows = arguments.engines * MAX_NUM_SEQS
    console.print(
        f"to full size first: {MIN_POOL_TURNS * pool_tokens:.0f} tokens of prompts, then {num_rows} clients at once …",
        highlight=False,
    )
    await load.fill(num_tokens=int(MIN_POOL_TURNS * pool_tokens), num_rows=num_rows)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, load.stop)
    end = await load.run(Progress(console, load, seconds))
    recording, counters = recorder.recording, recorder.recording.scrapes[-1][1].counters
    warm_up_s, memory = judge_all_memory(recording, load.load_s, pool_tokens=pool_tokens)
    troubled_lines = server.troubled_lines()
    return Report(
        settings=vars(arguments) | {"blocks of each engine": NUM_KV_BLOCKS},
        load_s=load.load_s,
        warm_up_s=warm_up_s,
        speed=speed_of(recording, load.load_s),
        num_preemptions=int(counters[PREEMPTED]),
        prefix_hit_rate=counters[CACHED] / max(1.0, counters[PROMPTED]),
        tally=load.tally,
        memory=memory,
        promises=judge(load.tally, end, memory, recording.scrapes[-1][1], list(recording.by_process()), troubled_lines),
        log_lines=server.lines_of(failure.request_id for failure in load.tally.failures),
        troubled_lines=troubled_lines,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak.run", description="A long load of every kind of client."
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--streams", type=int, default=32, help="clients that behave, at any time")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice")
    parser.add_argument("--out", default="build/soak", help="folder for what is written")
    arguments = parser.parse_args()
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 140)
    with (
        SoakServer(folder / "server.log", arguments.model, arguments.engines) as server,
        CsvRecorder(folder) as recorder,
    ):
        server.wait_for_line("is admitted", count=arguments.engines)
        report = asyncio.run(soak(server, recorder, arguments, console))
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(as_json(report)), indent=2))
    console.print(as_tables(report))
    console.print(f"{folder / 'report.json'}: {'promises BROKEN' if report.is_broken else 'no promise broken'}")
    return 1 if report.is_broken else 0


if __name__ == "__main__":
    sys.exit(main())
