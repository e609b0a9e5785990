"""What was measured while a soak ran, in memory and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from tests.soak.exposition import Scrape
from tests.soak.processes import ProcessSample


@dataclass(slots=True)
class Recording:
    """scrapes: with the time of each, in seconds from the start of the load."""

    processes: list[ProcessSample] = field(default_factory=list)
    scrapes: list[tuple[float, Scrape]] = field(default_factory=list)

    def by_process(self) -> dict[tuple[str, int], list[ProcessSample]]:
        """By (name, pid), in order of time."""
        grouped: dict[tuple[str, int], list[ProcessSample]] = {}
        for sample in self.processes:
            grouped.setdefault((sample.name, sample.pid), []).append(sample)
        return grouped

    def series(self, read: Callable[[Scrape], float]) -> tuple[list[float], list[float]]:
        """Times and values of something that every scrape tells."""
        return [at_s for at_s, _ in self.scrapes], [read(scrape) for _, scrape in self.scrapes]


class CsvRecorder:
    """Writes `processes.csv` and `metrics.csv` as it goes, so that a run that is killed leaves what it saw."""

    def __init__(self, folder: Path) -> None:
        self.recording = Recording()
        self._files = [(folder / name).open("w", newline="") for name in ("processes.csv", "metrics.csv")]
        self._processes, self._metrics = (csv.writer(file) for file in self._files)
        self._processes.writerow([f.name for f in fields(ProcessSample)])
        self._columns: list[str] = []

    def __enter__(self) -> CsvRecorder:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files:
            file.close()

    def add(self, at_s: float, processes: list[ProcessSample], scrape: Scrape | None) -> None:
        """scrape: None when the server did not answer."""
        self.recording.processes += processes
        self._processes.writerows([_rounded(value) for value in astuple(sample)] for sample in processes)
        if scrape is not None:
            self.recording.scrapes.append((at_s, scrape))
            values = {**scrape.gauges, **scrape.counters}
            if not self._columns:
                self._columns = list(values)
                self._metrics.writerow(["at_s", *self._columns])
            self._metrics.writerow([_rounded(at_s), *(values[column] for column in self._columns)])
        for file in self._files:
            file.flush()


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
