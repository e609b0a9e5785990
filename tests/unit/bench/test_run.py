from __future__ import annotations

import pytest

from tests.bench.run import FIGURES, PEER_FIGURES, parse


def test_everything_is_measured_three_times_unless_asked_otherwise() -> None:
    assert vars(parse([])) == {"peers": False, "rows": "", "runs": 3, "quick": False, "list": False}
    assert parse(["--quick"]).runs == 1
    assert parse(["--runs", "5", "--rows", "prefill*", "--peers"]).runs == 5


def test_no_runs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--runs", "0"])
    assert "--runs is at least 1" in capsys.readouterr().err


def test_every_row_has_a_name_of_its_own() -> None:
    names = [figure.name for figure in FIGURES]
    assert len(set(names)) == len(names)


def test_what_a_missing_peer_lacks_are_rows_of_the_table() -> None:
    assert [figure for figure in PEER_FIGURES if figure not in FIGURES] == []
    assert [figure.name for figure in PEER_FIGURES if "temperature" in figure.name] == []
