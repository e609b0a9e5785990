from __future__ import annotations

import pytest
from rich.console import Console

from tests.bench.results import Cell, Figure, Row
from tests.bench.table import comparison, make_table, number

RATE = Figure("output", "tokens/s", "higher")
DELAY = Figure("first token", "ms", "lower")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (3.456, "3.46"),
        (34.56, "34.6"),
        (9.876, "9.88"),
        (345.6, "346"),
        (34567.8, "34,568"),
    ],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_a_comparison_says_which_side_is_ahead() -> None:
    slow = Row(DELAY, Cell.of([30.0]), {"peer": Cell.of([10.0])})
    fast = Row(RATE, Cell.of([30.0]), {"peer": Cell.of([10.0])})
    assert comparison(slow, "peer") == "[red]3.00 behind[/]"
    assert comparison(fast, "peer") == "[green]3.00 ahead[/]"
    assert comparison(fast, "nobody") == ""


def test_the_whole_table() -> None:
    rows = [
        Row(RATE, Cell(30.0, 28.0, 31.0, "bf16"), {"peer": Cell(10.0, 9.0, 11.0, "q4")}),
        Row(DELAY, Cell(None, error="[Errno 2] not there"), {"other": Cell(None, error="it died")}),
        Row(Figure("memory, other", "MiB", "lower"), None, {"peer": Cell(5.0, 5.0, 5.0)}),
    ]
    console = Console(width=160, color_system=None)
    with console.capture() as capture:
        console.print(make_table(rows, "a machine"))
    text = capture.get().splitlines()
    heads = [[cell.strip() for cell in line.strip()[1:-1].split("┃")] for line in text if "┃" in line]
    assert heads == [
        ["", "", "ours", "", "peer", "", "", ""],
        ["row", "unit", "bf16", "spread", "q4", "ours / peer", "other", "ours / peer"],
    ]
    lines = [[cell.strip() for cell in line.strip()[1:-1].split("│")] for line in text if "│" in line]
    assert lines == [
        ["output", "tokens/s ↑", "30.0", "28.0 – 31.0", "10.0 (9.00 – 11.0)", "3.00 ahead", "", ""],
        ["first token", "ms ↓", "–", "(Errno 2) not there", "", "", "it died", ""],
        ["memory, other", "MiB ↓", "", "", "5.00 (5.00 – 5.00)", "", "", ""],
    ]
