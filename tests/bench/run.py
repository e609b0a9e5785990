"""`python -m tests.bench.run`: every number of docs/performance.md in one table, beside those of peers where asked."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from roundhouse.model_store import resolve_model
from tests.bench import encryption, parts, resume_gap
from tests.bench.campaign import Campaign, tell
from tests.bench.contestants import dtype_here, gather
from tests.bench.errors import BenchError
from tests.bench.load_client import build_client
from tests.bench.machine import commit_facts, load_average, machine_facts
from tests.bench.offline import OFFLINE
from tests.bench.prompts import word_ids
from tests.bench.results import Figure, Row, row_to_json
from tests.bench.stages import CEILING_STAGES, MODEL_STAGES, PEAK_RSS, READY, TOTAL_PEAK_RSS, figures_of
from tests.bench.table import make_table
from tests.bench.tiny_model import make_tiny_model

BUILD = Path("build")
MODEL = "smollm2"
INTERRUPTED = 130

MODEL_FIGURES = [*figures_of(MODEL_STAGES), READY, *PEAK_RSS.values()]
PEER_FIGURES = [*figures_of([stage for stage in MODEL_STAGES if not stage.for_ours_alone]), READY, TOTAL_PEAK_RSS]
CEILING_FIGURES = figures_of(CEILING_STAGES)
PART_FIGURES = [figure for figures in parts.FIGURES.values() for figure in figures]
FIGURES: list[Figure] = [
    *MODEL_FIGURES,
    OFFLINE,
    *resume_gap.FIGURES,
    *CEILING_FIGURES,
    *encryption.FIGURES,
    *PART_FIGURES,
]
"""In the order of the table."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.run",
        description="Measures Roundhouse on this machine: one table here, the same in build/bench.json; every single "
        "time and the servers' logs in build/bench. Ten minutes without peers, twenty-five with them; nothing else "
        "should run meanwhile.",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="measure vLLM and llama.cpp in the same run; the first time they are installed under build/peers",
    )
    parser.add_argument(
        "--rows",
        default="",
        metavar="PATTERN",
        help="only rows whose name has this in it, or matches it where it holds * or ? (see --list)",
    )
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each measurement (default: 3)")
    parser.add_argument("--quick", action="store_true", help="one run of each measurement, to try something")
    parser.add_argument("--list", action="store_true", help="print the names of all rows and end")
    parsed = parser.parse_args(arguments)
    if parsed.runs < 1:
        parser.error("--runs is at least 1")
    if parsed.quick:
        parsed.runs = 1
    return parsed


def measure(options: argparse.Namespace) -> list[Row]:
    """Raises `BenchError` when nothing at all can be measured."""
    build = BUILD / "bench"
    client = build_client(build)
    model = resolve_model(MODEL).path
    tiny = make_tiny_model(build / "tiny-model", model)
    field = gather(BUILD, model, tiny.absolute(), with_peers=options.peers)
    dtype = dtype_here()
    campaign = Campaign(build, client, word_ids(model), pattern=options.rows)
    for name, error in field.errors.items():
        campaign.fail(name, PEER_FIGURES, error)
    for number in range(1, options.runs + 1):
        tell(f"run {number} of {options.runs}")
        for contestant in field.model:
            campaign.serve(contestant, MODEL_STAGES, group="model", with_process=True)
        campaign.run_part("offline", "tests.bench.offline", [str(model), dtype], [OFFLINE])
        arguments = [str(model), dtype, str(client.absolute())]
        campaign.run_part("resume gap", "tests.bench.resume_gap", arguments, resume_gap.FIGURES)
        for contestant in field.tiny:
            campaign.serve(contestant, CEILING_STAGES, group="tiny", with_process=False)
        arguments = [str(tiny), dtype, str(client.absolute())]
        campaign.run_part("encryption", "tests.bench.encryption", arguments, encryption.FIGURES)
        for part, figures in parts.FIGURES.items():
            campaign.run_part(f"{part} alone", "tests.bench.parts", [part], figures)
    return campaign.rows(FIGURES)


def main() -> int:
    options = parse()
    if options.list:
        print("\n".join(figure.name for figure in FIGURES))
        return 0
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(width=None if sys.stdout.isatty() else 200)
    load_before, started, commit = load_average(), time.monotonic(), commit_facts()
    try:
        rows = measure(options)
    except KeyboardInterrupt:
        tell("interrupted; every process that was started has ended")
        return INTERRUPTED
    except BenchError as error:
        tell(str(error))
        return 1
    machine = {**machine_facts(), "load_before": load_before, "load_after": load_average()}
    report = {
        "rows": [row_to_json(row) for row in rows],
        "machine": machine,
        "commit": commit,
        "runs": options.runs,
        "seconds": round(time.monotonic() - started, 1),
    }
    (BUILD / "bench.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    console.print(make_table(rows, _caption(report)))
    return 1 if any(row.ours is not None and row.ours.error for row in rows) else 0


def _caption(report: dict[str, Any]) -> str:
    machine, commit = report["machine"], report["commit"]
    dirty = " with changes" if commit["is_dirty"] else ""
    runs = "1 run" if report["runs"] == 1 else f"{report['runs']} runs"
    return (
        f"{machine['cores']} cores of {machine['cpu']} ({' '.join(machine['instruction_sets'])}), "
        f"{machine['memory_gib']} GiB, load {machine['load_before'][0]} → {machine['load_after'][0]}; "
        f"torch {machine['torch']}, transformers {machine['transformers']}; "
        f"commit {(commit['revision'] or 'unknown')[:7]}{dirty}; {runs}, {report['seconds']:.0f} s; "
        f"also in {BUILD / 'bench.json'}"
    )


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
