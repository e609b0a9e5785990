"""Every state of every scenario, up to its depth: no rule is broken, and each state can come to rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.model.explore import explore
from tests.model.scenarios import SCENARIOS
from tests.model.world import Scenario

ENDS = {
    "poison": {"length", "poisoned"},
    "two requests": {"length", "aborted"},
    "leaving": {"length", "aborted"},
}
"""How requests end; where nothing is said, all of them with their last token."""


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_no_rule_is_broken(scenario: Scenario) -> None:
    report = explore(scenario)
    assert scenario.faults <= report.kinds
    assert report.ends - {""} == ENDS.get(scenario.name, {"length"})


def test_the_page_about_failover_names_what_is_visited() -> None:
    page = (Path(__file__).parents[2] / "docs" / "failover.md").read_text()
    rows = re.findall(r"^\| ([a-z ]+) \| (\d) \| (\d) \| (\d+) \| [\d,]+ \|", page, re.MULTILINE)
    scenarios = SCENARIOS.values()
    assert rows == [(s.name, str(len(s.slots)), str(s.num_faults), str(s.depth)) for s in scenarios]
