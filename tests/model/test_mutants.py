"""The explorer finds what is wrong when something is: each rule of the machines, broken on purpose."""

from __future__ import annotations

import pytest

from tests.model.explore import Found, explore
from tests.model.mutants import SCENARIO_OF, Mutant
from tests.model.scenarios import SCENARIOS


@pytest.mark.parametrize("mutant", SCENARIO_OF, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises(Found):
        explore(SCENARIOS[SCENARIO_OF[mutant]])


def test_a_violation_is_told_with_the_shortest_way_to_it() -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant = next(mutant for mutant in SCENARIO_OF if mutant.__name__ == "no_output_number_check")
        mutant(patch)
        with pytest.raises(Found) as found:
            explore(SCENARIOS["lost frames"])
    assert str(found.value).splitlines() == [
        "scenario lost frames, after 2 events: r1 was shown [101], due were [100]",
        "  1. step a",
        "  2. drop a1 by push: outputs 1 of session 1 [r1 attempt 0 from 0: [100]]",
        "     then nothing breaks any more",
    ]
