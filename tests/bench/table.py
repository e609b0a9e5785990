"""The rows as a table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tests.bench.results import Cell, Row

_ARROWS = {"higher": "↑", "lower": "↓"}


def make_table(rows: Sequence[Row], caption: str) -> Table:
    """A column for us, and two for each peer that any row has: its value, and ours divided by it."""
    peers = list(dict.fromkeys(name for row in rows for name in row.peers))
    table = Table(caption=caption, title="medians, (lowest – highest)", show_lines=False, caption_justify="left")
    table.add_column("row", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column(_head("ours", [row.ours for row in rows]), justify="right", no_wrap=True)
    table.add_column("spread", justify="right", no_wrap=True)
    for peer in peers:
        table.add_column(_head(peer, [row.peers.get(peer) for row in rows]), justify="right")
        table.add_column("ours / peer", justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row.figure.name}", f"{row.figure.unit} {_ARROWS[row.figure.better]}", *_own_cells(row.ours)]
        for peer in peers:
            cells += [_peer_cell(row.peers.get(peer)), comparison(row, peer)]
        table.add_row(*cells)
    return table


def comparison(row: Row, peer: str) -> str:
    """The ratio and what it means, in rich's markup: a ratio under 1 is good for some rows and bad for others."""
    ratio = row.ratio(peer)
    if ratio is None:
        return ""
    return f"[green]{number(ratio)} ahead[/]" if row.is_ahead(peer) else f"[red]{number(ratio)} behind[/]"


def number(value: float) -> str:
    """Three significant digits, thousands with a comma."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 1:
        return f"{value:.3g}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _head(name: str, cells: Sequence[Cell | None]) -> str:
    """With the precision under it: servers of different precision do not do the same work."""
    precision = next((cell.precision for cell in cells if cell is not None and cell.precision), "")
    return f"{name}\n{precision}".strip()


def _own_cells(cell: Cell | None) -> tuple[str, str]:
    if cell is None:
        return "", ""
    if cell.median is None:
        return "–", _short(cell.error)
    return number(cell.median), _spread(cell)


def _peer_cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return _short(cell.error) if cell.median is None else f"{number(cell.median)} ({_spread(cell)})"


def _spread(cell: Cell) -> str:
    if cell.lowest is None or cell.highest is None:
        return ""
    return f"{number(cell.lowest)} – {number(cell.highest)}"


def _short(error: str) -> str:
    """Square brackets would be markup."""
    return error.replace("[", "(").replace("]", ")")[:60]
