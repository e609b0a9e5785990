from __future__ import annotations

import pytest

from tests.bench.results import OURS, Cell, Figure, Row, make_rows, percentile, row_to_json

RATE = Figure("output", "tokens/s", "higher")
DELAY = Figure("first token", "ms", "lower")


def test_a_cell_is_median_and_spread() -> None:
    assert Cell.of([3.0, 1.0, 2.0], "bf16") == Cell(2.0, 1.0, 3.0, "bf16")


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "ratio", "is_ahead"),
    [
        (RATE, 30.0, 10.0, 3.0, True),
        (RATE, 5.0, 10.0, 0.5, False),
        (DELAY, 5.0, 10.0, 0.5, True),
        (DELAY, 30.0, 10.0, 3.0, False),
        (DELAY, 10.0, 10.0, 1.0, True),
    ],
)
def test_what_a_ratio_means_depends_on_the_figure(
    figure: Figure, ours: float, theirs: float, ratio: float, is_ahead: bool
) -> None:
    row = Row(figure, Cell.of([ours]), {"peer": Cell.of([theirs])})
    assert row.ratio("peer") == ratio
    assert row.is_ahead("peer") is is_ahead


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (None, Cell.of([1.0])),
        (Cell(None, error="no"), Cell.of([1.0])),
        (Cell.of([1.0]), Cell(None, error="no")),
        (Cell.of([1.0]), Cell.of([0.0])),
    ],
)
def test_no_ratio_without_two_numbers(ours: Cell | None, theirs: Cell) -> None:
    row = Row(RATE, ours, {"peer": theirs})
    assert row.ratio("peer") is None
    assert row.is_ahead("peer") is None
    assert row.ratio("somebody else") is None


def test_rows_come_in_the_order_of_the_figures() -> None:
    rows = make_rows(
        [RATE, DELAY, Figure("nobody measured this", "s", "lower")],
        {OURS: {"first token": [5.0, 7.0], "output": [1.0]}, "peer": {"output": [2.0]}},
        {},
        {OURS: "bf16", "peer": "q4"},
    )
    assert rows == [
        Row(RATE, Cell(1.0, 1.0, 1.0, "bf16"), {"peer": Cell(2.0, 2.0, 2.0, "q4")}),
        Row(DELAY, Cell(6.0, 5.0, 7.0, "bf16"), {}),
    ]


def test_an_error_stands_in_the_place_of_all_runs() -> None:
    rows = make_rows([RATE], {OURS: {"output": [1.0]}, "peer": {"output": [2.0]}}, {"peer": {"output": "it died"}}, {})
    assert rows == [Row(RATE, Cell(1.0, 1.0, 1.0), {"peer": Cell(None, error="it died")})]


def test_a_peer_alone_makes_a_row() -> None:
    rows = make_rows([RATE], {OURS: {}}, {"peer": {"output": "not installed"}}, {})
    assert rows == [Row(RATE, None, {"peer": Cell(None, error="not installed")})]


@pytest.mark.parametrize(
    ("count", "fraction", "expected"),
    [(1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (100, 0.99, 99), (100, 0.07, 7), (4, 1.0, 4)],
)
def test_percentiles_are_values_that_occurred(count: int, fraction: float, expected: int) -> None:
    assert percentile(range(count, 0, -1), fraction) == expected


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_row_as_json() -> None:
    row = Row(
        DELAY, Cell(6.0, 5.0, 7.0, "bf16"), {"fast": Cell(3.0, 3.0, 3.0, "q4"), "broken": Cell(None, error="it died")}
    )
    assert row_to_json(row) == {
        "name": "first token",
        "unit": "ms",
        "better": "lower",
        "ours": 6.0,
        "spread": [5.0, 7.0],
        "error": "",
        "peers": {
            "fast": {"median": 3.0, "spread": [3.0, 3.0], "error": ""},
            "broken": {"median": None, "spread": [None, None], "error": "it died"},
        },
        "ratios": {"fast": 2.0, "broken": None},
        "precision": {OURS: "bf16", "fast": "q4", "broken": ""},
    }


def test_a_row_of_a_peer_alone_as_json() -> None:
    assert row_to_json(Row(RATE, None, {"peer": Cell(2.0, 2.0, 2.0, "q4")})) == {
        "name": "output",
        "unit": "tokens/s",
        "better": "higher",
        "ours": None,
        "spread": None,
        "error": "",
        "peers": {"peer": {"median": 2.0, "spread": [2.0, 2.0], "error": ""}},
        "ratios": {"peer": None},
        "precision": {"peer": "q4"},
    }
