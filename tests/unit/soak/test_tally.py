from __future__ import annotations

from tests.soak.tally import MAX_EXAMPLES, Failure, Outcome, Tally


def test_failures_are_all_counted_and_some_are_kept() -> None:
    tally = Tally()
    tally.count("seed", Outcome.AS_MEANT)
    for i in range(MAX_EXAMPLES + 5):
        tally.fail(Failure("logprobs", f"soak-{i}", 1.0, "status 500"))
    assert (tally.total(), tally.total(Outcome.WRONG), len(tally.failures)) == (MAX_EXAMPLES + 6, MAX_EXAMPLES + 5, 30)
    assert tally.kinds() == ["logprobs", "seed"]
