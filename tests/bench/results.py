"""Rows of the table: what was measured, of whom, and how they compare. Values only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Better = Literal["higher", "lower"]

OURS = "roundhouse"


@dataclass(frozen=True)
class Figure:
    """Something measured: the name and unit of its row, and which direction is good."""

    name: str
    unit: str
    better: Better


@dataclass(frozen=True)
class Cell:
    """One server's values of a figure: median and spread of its runs, or the sentence that says why there are none."""

    median: float | None
    lowest: float | None = None
    highest: float | None = None
    precision: str = ""
    error: str = ""

    @classmethod
    def of(cls, values: Sequence[float], precision: str = "") -> Cell:
        return cls(statistics.median(values), min(values), max(values), precision)


@dataclass(frozen=True)
class Row:
    """`ours` is None where only a peer has the figure; `peers` holds those that were measured, in their order."""

    figure: Figure
    ours: Cell | None
    peers: Mapping[str, Cell]

    def ratio(self, peer: str) -> float | None:
        """Ours / peer, None unless both have a number."""
        cell = self.peers.get(peer)
        if cell is None or self.ours is None or self.ours.median is None or not cell.median:
            return None
        return self.ours.median / cell.median

    def is_ahead(self, peer: str) -> bool | None:
        """Whether ours is at least as good, None unless both have a number."""
        ratio = self.ratio(peer)
        if ratio is None:
            return None
        return ratio >= 1.0 if self.figure.better == "higher" else ratio <= 1.0


def make_rows(
    figures: Sequence[Figure],
    values: Mapping[str, Mapping[str, Sequence[float]]],
    errors: Mapping[str, Mapping[str, str]],
    precisions: Mapping[str, str],
) -> list[Row]:
    """A row for each figure that anyone has something to say about.

    values, errors: by server, then by figure name. A server with an error for a figure shows the error alone: runs that
    went well beside one that failed are no result.
    """
    servers = list(dict.fromkeys([*values, *errors]))
    rows: list[Row] = []
    for figure in figures:
        cells: dict[str, Cell] = {}
        for server in servers:
            error = errors.get(server, {}).get(figure.name)
            measured = values.get(server, {}).get(figure.name)
            if error is not None:
                cells[server] = Cell(None, error=error)
            elif measured:
                cells[server] = Cell.of(measured, precisions.get(server, ""))
        if cells:
            ours = cells.pop(OURS, None)
            rows.append(Row(figure, ours, cells))
    return rows


def percentile(values: Sequence[float], fraction: float) -> float:
    """The smallest value that at least `fraction` of all values do not exceed (nearest rank). Raises on no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    # Rounded first: 0.07 × 100 is a little over 7.
    return ordered[max(1, math.ceil(round(fraction * len(ordered), 9))) - 1]


def row_to_json(row: Row) -> dict[str, Any]:
    """As it stands in bench.json."""
    return {
        "name": row.figure.name,
        "unit": row.figure.unit,
        "better": row.figure.better,
        "ours": None if row.ours is None else row.ours.median,
        "spread": None if row.ours is None else [row.ours.lowest, row.ours.highest],
        "error": "" if row.ours is None else row.ours.error,
        "peers": {
            name: {"median": cell.median, "spread": [cell.lowest, cell.highest], "error": cell.error}
            for name, cell in row.peers.items()
        },
        "ratios": {name: row.ratio(name) for name in row.peers},
        "precision": {
            **({} if row.ours is None else {OURS: row.ours.precision}),
            **{name: cell.precision for name, cell in row.peers.items()},
        },
    }
