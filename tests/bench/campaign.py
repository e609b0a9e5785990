"""A campaign: every contestant measured in turn, round after round, so that noise of the machine hits all alike."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tests.bench.contestants import Contestant
from tests.bench.errors import BenchError
from tests.bench.load_client import LoadReport, run_client
from tests.bench.prompts import make_prompts
from tests.bench.results import OURS, Figure, Row, make_rows
from tests.bench.server import RunningServer, free_port, running
from tests.bench.stages import PEAK_RSS, READY, TOTAL_PEAK_RSS, WARM_UP, Stage, figures_of

PART_TIMEOUT_S = 600.0
_FAILURES = (BenchError, OSError, subprocess.SubprocessError)


def is_wanted(figure: Figure, pattern: str) -> bool:
    """Whether a row is chosen: by a part of its name, or by all of it where the pattern has `*` or `?`, in any case."""
    name, pattern = figure.name.lower(), pattern.lower()
    return fnmatch(name, pattern) if set(pattern) & set("*?") else pattern in name


class Campaign:
    """What was measured so far. A measurement that fails costs its own rows and no others."""

    def __init__(self, build: Path, client: Path, words: list[int], *, pattern: str = "") -> None:
        self._build = build
        self._client = client
        self._words = words
        self._pattern = pattern
        self._values: dict[str, dict[str, list[float]]] = {OURS: {}}
        self._errors: dict[str, dict[str, str]] = {}
        self._precisions: dict[str, str] = {}
        self._given_up: set[tuple[str, str]] = set()

    def wants(self, figures: Sequence[Figure]) -> bool:
        return any(is_wanted(figure, self._pattern) for figure in figures)

    def fail(self, name: str, figures: Sequence[Figure], error: str) -> None:
        """`name` has no values of `figures`, and why."""
        self._errors.setdefault(name, {}).update(dict.fromkeys([figure.name for figure in figures], error))

    def serve(self, contestant: Contestant, stages: Sequence[Stage], *, group: str, with_process: bool) -> None:
        """One run of a server through the stages; one that did not start is not tried again.

        group: of contestants with the same model. with_process: its start and its memory are rows as well. The server's
        log and the client's last reports stay in a folder of the group and the contestant.
        """
        own = [stage for stage in stages if contestant.name == OURS or not stage.for_ours_alone]
        wanted = [stage for stage in own if self.wants(stage.figures)]
        of_process = [READY, *PEAK_RSS.values()] if with_process else []
        if (contestant.name, group) in self._given_up or not (wanted or self.wants(of_process)):
            return
        folder = self._build / f"{group}-{contestant.name.replace(' ', '-')}"
        first_prompt = make_prompts(self._words, 1, WARM_UP.prompt_tokens, seed="first")[0]
        try:
            server = contestant.make(free_port())
            self._precisions[contestant.name] = server.precision
            tell(f"  {contestant.name}: starting …")
            with running(server, folder / "server.log", first_prompt) as process:
                tell(f"  {contestant.name}: ready in {process.ready_s:.1f} s")
                self._measure(process, wanted, folder, with_process=with_process)
        except _FAILURES as error:
            self._given_up.add((contestant.name, group))
            told = [READY, TOTAL_PEAK_RSS] if with_process else []
            self.fail(contestant.name, [*told, *figures_of(wanted)], str(error))
            tell(f"  {contestant.name}: {error}")

    def _measure(self, process: RunningServer, stages: Sequence[Stage], folder: Path, *, with_process: bool) -> None:
        name = process.server.name
        self._load(process, WARM_UP, folder)
        for stage in stages:
            with self._kept(f"{name}: {stage.name}", name, stage.figures):
                self._keep(name, stage.values(self._load(process, stage, folder)))
        if with_process:
            with self._kept(f"{name}: memory", name, [TOTAL_PEAK_RSS]):
                self._keep(name, {READY.name: process.ready_s})
                peaks = process.peak_rss_mib()
                self._keep(name, {PEAK_RSS[role].name: peak for role, peak in peaks.items()})

    def run_part(self, name: str, module: str, arguments: Sequence[str], figures: Sequence[Figure]) -> None:
        """One run of a measuring module of ours, a process that prints its values as JSON."""
        if not self.wants(figures):
            return
        with self._kept(name, OURS, figures):
            self._keep(OURS, _run_module(module, arguments))

    def rows(self, figures: Sequence[Figure]) -> list[Row]:
        wanted = [figure for figure in figures if is_wanted(figure, self._pattern)]
        return make_rows(wanted, self._values, self._errors, self._precisions)

    def _load(self, process: RunningServer, stage: Stage, folder: Path) -> LoadReport:
        return run_client(
            self._client,
            process.server.port,
            stage.bodies(process.server, self._words),
            folder / stage.name.replace(" ", "-"),
            num_streams=stage.num_streams,
            requests_each=stage.requests_each,
        )

    def _keep(self, name: str, values: dict[str, float]) -> None:
        for figure, value in values.items():
            self._values.setdefault(name, {}).setdefault(figure, []).append(value)

    @contextmanager
    def _kept(self, what: str, name: str, figures: Sequence[Figure]) -> Iterator[None]:
        """Tells how long `what` takes. What fails inside becomes the error of these figures of `name`."""
        tell(f"  {what} …")
        started = time.monotonic()
        try:
            yield
        except _FAILURES as error:
            self.fail(name, figures, str(error))
            tell(f"  {what}: {error}")
        else:
            tell(f"  {what}: {time.monotonic() - started:.1f} s")


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _run_module(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Raises `BenchError` with the last line it wrote when it fails."""
    result = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PART_TIMEOUT_S,
        check=False,
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        raise BenchError(lines[-1] if lines else f"exit code {result.returncode}")
    return json.loads(result.stdout.splitlines()[-1])
