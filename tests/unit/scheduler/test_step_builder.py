from __future__ import annotations

from roundhouse.protocol.sampling import StructuredOutputsParams
from roundhouse.scheduler.step import NewRequest, SchedulerOutput
from roundhouse.scheduler.step_builder import StepBuilder
from tests.support.builders import request


def test_builds_a_plan_within_a_budget() -> None:
    step = StepBuilder(token_budget=20)
    new = request("n", 8, outputs=[5], seed=3, child_index=1)
    new.num_computed_tokens = 4
    step.continue_request("old", 1, [])
    step.continue_request("grown", 2, [9])
    step.start_request(new, 5, [1, 2, 3])
    new.token_ids.append(99)
    assert (step.token_budget, step.has_preempted) == (12, False)
    plan = step.build(["gone"])
    assert plan == SchedulerOutput(
        new_requests=[
            NewRequest("0:n", [1, 2, 3, 4, 5, 6, 7, 8, 5], 8, new.sampling_params, 3, 1, frozenset([0]), [1, 2, 3], 4)
        ],
        num_scheduled_tokens={"old": 1, "grown": 2, "0:n": 5},
        new_blocks={"grown": [9]},
        finished=["gone"],
    )
    assert plan.total_num_scheduled_tokens == 8


def test_one_grammar_begins_in_a_step() -> None:
    step = StepBuilder(token_budget=20)
    digits, letters = StructuredOutputsParams(regex="[0-9]+"), StructuredOutputsParams(regex="[a-z]+")
    step.start_request(request("free"), 1, [1])
    assert (step.can_begin(digits), step.can_begin(letters)) == (True, True)
    step.start_request(request("digits", structured_outputs=digits), 1, [2])
    step.start_request(request("free too"), 1, [3])
    assert step.can_begin(StructuredOutputsParams(regex="[0-9]+"))
    assert (step.can_begin(None), step.can_begin(digits), step.can_begin(letters)) == (True, True, False)


def test_what_a_victim_got_goes_back() -> None:
    step = StepBuilder(token_budget=5)
    step.continue_request("a", 2, [9])
    step.take_back("a")
    step.take_back("never scheduled")
    assert (step.token_budget, step.has_preempted) == (5, True)
    assert step.build([]) == SchedulerOutput([], {})
