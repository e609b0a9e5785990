from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.campaign import Campaign, is_wanted
from tests.bench.contestants import Contestant
from tests.bench.errors import BenchError
from tests.bench.results import OURS, Cell, Figure, Row
from tests.bench.server import BenchServer
from tests.bench.stages import READY, TOTAL_PEAK_RSS, Stage

OUTPUT = Figure("output, 8 streams", "tokens/s", "higher")
STAGES = (
    Stage("8 streams", num_streams=8, requests_each=1),
    Stage("8 streams, ours", 8, 1, for_ours_alone=True),
)


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("", True),
        ("8 streams", True),
        ("OUTPUT", True),
        ("output*", True),
        ("*streams", True),
        ("put*", False),
        ("32", False),
    ],
)
def test_which_rows_a_pattern_chooses(pattern: str, wanted: bool) -> None:
    assert is_wanted(OUTPUT, pattern) is wanted


def campaign(pattern: str = "") -> Campaign:
    return Campaign(Path("unused"), Path("unused"), list(range(100)), pattern=pattern)


class NeverStarts:
    def __init__(self) -> None:
        self.num_asked = 0

    def make(self, port: int) -> BenchServer:
        self.num_asked += 1
        raise BenchError("no compiler")


def test_who_cannot_start_has_errors_for_rows_and_is_not_tried_again() -> None:
    measured, peer = campaign(), NeverStarts()
    for _ in range(3):
        measured.serve(Contestant("peer", peer.make), STAGES, group="model", with_process=True)
    assert peer.num_asked == 1
    figures = [READY, TOTAL_PEAK_RSS, *STAGES[0].figures]
    assert measured.rows([*figures, *STAGES[1].figures]) == [
        Row(figure, None, {"peer": Cell(None, error="no compiler")}) for figure in figures
    ]


def test_nobody_is_started_for_rows_that_nobody_wants() -> None:
    measured, peer = campaign("prefill"), NeverStarts()
    measured.serve(Contestant("peer", peer.make), STAGES, group="model", with_process=True)
    assert peer.num_asked == 0


def test_only_wanted_rows_are_shown() -> None:
    measured = campaign("ready")
    measured.fail(OURS, [READY, OUTPUT], "broken")
    assert measured.rows([READY, OUTPUT]) == [Row(READY, Cell(None, error="broken"), {})]
