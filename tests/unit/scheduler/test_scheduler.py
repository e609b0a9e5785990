from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from roundhouse.protocol.errors import (
    ContextLengthExceeded,
    DuplicateRequestId,
    EngineGenerateError,
    PromptNeverFits,
    RequestError,
)
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import EngineCoreEvent, EngineCoreOutput, EventType, OutputError, SchedulerStats
from roundhouse.protocol.sampling import FinishReason, StructuredOutputsParams
from roundhouse.scheduler.request import Request, RequestStatus
from roundhouse.scheduler.step import ModelRunnerOutput, SchedulerOutput
from tests.support.builders import CLIENT, request, scheduler
from tests.support.scheduler_loop import SchedulerLoop
from tests.support.scripted_runner import ScriptedRunner, continue_prompt

QUEUED, SCHEDULED, PREEMPTED = EventType.QUEUED, EventType.SCHEDULED, EventType.PREEMPTED


def loop(
    *, script: dict[str, list[int]] | None = None, fail: dict[str, str] | None = None, **config: Any
) -> SchedulerLoop:
    made = scheduler(**config)
    runner = ScriptedRunner(block_size=made.kv_cache.block_size, script=script, fail=fail)
    return SchedulerLoop(made, runner)


def add(run: SchedulerLoop, request_id: str, prompt: Any = 8, **fields: Any) -> Request:
    """Endless up to max_tokens unless told otherwise."""
    made = request(request_id, prompt, **{"ignore_eos": True, **fields})
    run.scheduler.add_request(made, now=0.5)
    return made


# One request.


def test_a_request_from_its_prompt_to_its_end() -> None:
    run = loop()
    one = add(run, "a", 6, max_tokens=3)
    assert run.step() == SchedulerOutput(
        new_requests=run.plans[0].new_requests, num_scheduled_tokens={"0:a": 6}, new_blocks={}, finished=[]
    )
    (new,) = run.plans[0].new_requests
    assert (new.token_ids, new.block_ids, new.num_computed_tokens) == ([1, 2, 3, 4, 5, 6], [1, 2], 0)
    assert run.step() == SchedulerOutput([], {"0:a": 1})
    assert run.step() == SchedulerOutput([], {"0:a": 1})
    assert one.status is RequestStatus.FINISHED_LENGTH
    # Its blocks are free at once; the runner hears of it with the next step, though there is nothing else to do.
    assert (run.scheduler.stats().num_running_reqs, run.scheduler.has_requests()) == (0, True)
    assert run.scheduler.kv_cache.usage == 0.0
    assert run.step() == SchedulerOutput([], {}, finished=["0:a"])
    assert not run.scheduler.has_requests()
    tokens = continue_prompt([1, 2, 3, 4, 5, 6], 3)
    assert run.stream("a").outputs == [
        EngineCoreOutput("a", 0, 0, tokens[:1], events=[EngineCoreEvent(QUEUED, 0.5), EngineCoreEvent(SCHEDULED, 1.0)]),
        EngineCoreOutput("a", 0, 1, tokens[1:2]),
        EngineCoreOutput("a", 0, 2, tokens[2:], FinishReason.LENGTH),
    ]


def test_a_long_prompt_takes_several_steps_and_all_its_blocks_at_once() -> None:
    run = loop(max_num_batched_tokens=5)
    add(run, "a", 12, max_tokens=2)
    run.run()
    assert [plan.num_scheduled_tokens for plan in run.plans[:4]] == [{"0:a": 5}, {"0:a": 5}, {"0:a": 2}, {"0:a": 1}]
    assert run.plans[0].new_requests[0].block_ids == [1, 2, 3]
    assert [plan.new_blocks for plan in run.plans[:4]] == [{}, {}, {}, {"0:a": [4]}]
    assert run.stream("a").token_ids == continue_prompt(range(1, 13), 2)


def test_stops_by_eos_and_by_stop_token() -> None:
    run = loop(script={"0:a": [5, 0], "0:b": [5, 7]})
    add(run, "a", ignore_eos=False, max_tokens=9)
    add(run, "b", stop_token_ids=[7], max_tokens=9)
    run.run()
    ends = [run.stream(name).outputs[-1] for name in "ab"]
    assert [(end.finish_reason, end.stop_reason, end.new_token_ids) for end in ends] == [
        (FinishReason.STOP, None, [0]),
        (FinishReason.STOP, 7, [7]),
    ]


def test_ends_with_the_context() -> None:
    run = loop(max_model_len=10)
    add(run, "a", 8, max_tokens=None)
    run.run()
    assert run.stream("a").token_ids == continue_prompt(range(1, 9), 2)
    assert run.stream("a").finish_reason is FinishReason.LENGTH


def test_logprobs_are_passed_on() -> None:
    run = loop(max_num_batched_tokens=3)
    add(run, "a", 8, logprobs=0, prompt_logprobs=0, max_tokens=2)
    run.run()
    first, second = run.stream("a").outputs
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs.token_ids[:, 0].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert second.prompt_logprobs is None
    assert [output.new_logprobs.token_ids for output in (first, second)] == [  # type: ignore[union-attr]
        [first.new_token_ids],
        [second.new_token_ids],
    ]


# Several requests in one step.


def test_running_requests_come_before_waiting_ones() -> None:
    run = loop(max_num_batched_tokens=10)
    add(run, "a", 8, max_tokens=5)
    add(run, "b", 20, max_tokens=5)
    assert [run.step().num_scheduled_tokens for _ in range(4)] == [
        {"0:a": 8, "0:b": 2},
        {"0:a": 1, "0:b": 9},
        {"0:a": 1, "0:b": 9},
        {"0:a": 1, "0:b": 1},
    ]


def test_no_more_requests_run_than_allowed() -> None:
    run = loop(max_num_seqs=2)
    for name in "abc":
        add(run, name, 4, max_tokens=2)
    assert list(run.step().num_scheduled_tokens) == ["0:a", "0:b"]
    assert run.scheduler.stats().num_waiting_reqs == 1
    run.run()
    assert list(run.plans[2].num_scheduled_tokens) == ["0:c"]


def test_a_long_prompt_shares_the_step_only_with_company() -> None:
    run = loop(long_prefill_token_threshold=4)
    add(run, "a", 20, max_tokens=1)
    assert run.step().num_scheduled_tokens == {"0:a": 20}
    add(run, "b", [9] * 10, max_tokens=9)
    add(run, "c", 3, max_tokens=9)
    assert [run.step().num_scheduled_tokens for _ in range(3)] == [
        {"0:b": 4, "0:c": 3},
        {"0:b": 4, "0:c": 1},
        {"0:b": 2, "0:c": 1},
    ]


def test_a_prompt_waits_until_all_of_it_fits_and_nobody_overtakes_it() -> None:
    run = loop(num_blocks=6, max_num_batched_tokens=4)
    add(run, "a", 8, max_tokens=2)
    add(run, "b", [9] * 13, max_tokens=1)
    add(run, "c", 1, max_tokens=1)
    run.run()
    # b needs four of five blocks: it starts when a has ended, though two were free all along.
    firsts = {new.request_id: step for step, plan in enumerate(run.plans) for new in plan.new_requests}
    assert firsts == {"0:a": 0, "0:b": 3, "0:c": 6}


def test_grammars_begin_one_a_step_in_order_and_the_same_one_together() -> None:
    """Each is compiled within the step; the stream that runs gets a token in every one of them."""
    run = loop()
    add(run, "stream", 4, max_tokens=9)
    run.step()
    for request_id, regex in (("a", "a+"), ("a too", "a+"), ("b", "b+"), ("free", None), ("c", "c+"), ("a late", "a+")):
        grammar = None if regex is None else StructuredOutputsParams(regex=regex)
        add(run, request_id, 2, max_tokens=9, structured_outputs=grammar)
    begun = [[new.request_id for new in run.step().new_requests] for _ in range(4)]
    assert begun == [["0:a", "0:a too"], ["0:b", "0:free"], ["0:c"], ["0:a late"]]
    assert all("0:stream" in plan.num_scheduled_tokens for plan in run.plans)


def test_priority_decides_who_is_admitted() -> None:
    run = loop(policy="priority", max_num_seqs=1)
    for name, priority in (("a", 5), ("b", 1), ("c", 1)):
        add(run, name, 4, priority=priority, max_tokens=1, arrival_time=9.0 if name == "b" else 3.0)
    run.run()
    assert [new.request_id for plan in run.plans for new in plan.new_requests] == ["0:c", "0:b", "0:a"]


# The prefix cache.


def test_a_second_prompt_hits_what_the_first_computed() -> None:
    run = loop()
    add(run, "a", 12, max_tokens=1)
    run.step()
    add(run, "b", 12, max_tokens=1)
    plan = run.step()
    # Twelve tokens are three full blocks; the last token has to be computed, so two of them count.
    assert plan.num_scheduled_tokens == {"0:b": 4}
    assert plan.new_requests[0].num_computed_tokens == 8
    run.run()
    assert run.stream("b").outputs[0].num_cached_tokens == 8
    assert run.stream("b").token_ids == run.stream("a").token_ids
    stats = run.scheduler.stats()
    assert (stats.prefix_cache_queries_total, stats.prefix_cache_hits_total) == (24, 8)


def test_outputs_are_cached_as_well() -> None:
    run = loop()
    add(run, "a", 4, max_tokens=9)
    run.run()
    conversation = [1, 2, 3, 4, *run.stream("a").token_ids]
    add(run, "b", [*conversation, 9, 9], max_tokens=1)
    run.run()
    assert run.stream("b").outputs[0].num_cached_tokens == 12


def test_nothing_is_shared_within_the_step_that_computes_it() -> None:
    run = loop()
    add(run, "a", 12, max_tokens=1)
    add(run, "b", 12, max_tokens=1)
    assert run.step().num_scheduled_tokens == {"0:a": 12, "0:b": 12}
    assert run.stream("a").token_ids == run.stream("b").token_ids


@pytest.mark.parametrize("second", [{"cache_salt": "s"}, {"prompt_logprobs": 1}])
def test_who_may_not_or_cannot_read_the_cache(second: dict[str, Any]) -> None:
    run = loop()
    add(run, "a", 12, max_tokens=1)
    run.step()
    add(run, "b", 12, max_tokens=1, **second)
    assert run.step().num_scheduled_tokens == {"0:b": 12}
    assert run.stream("b").token_ids == run.stream("a").token_ids


def test_prefix_caching_can_be_off() -> None:
    run = loop(enable_prefix_caching=False)
    add(run, "a", 12, max_tokens=1)
    run.step()
    add(run, "b", 12, max_tokens=1)
    assert run.step().num_scheduled_tokens == {"0:b": 12}
    assert run.scheduler.stats().prefix_cache_queries_total == 0


def test_the_cache_is_reset_only_when_nobody_uses_it() -> None:
    run = loop()
    add(run, "a", 12, max_tokens=2)
    run.step()
    assert run.scheduler.reset_prefix_cache() is False
    run.run()
    assert run.scheduler.reset_prefix_cache() is True
    add(run, "b", 12, max_tokens=1)
    assert run.step().num_scheduled_tokens == {"0:b": 12}


# Preemption.


def test_the_last_one_gives_its_blocks_and_comes_back_whole() -> None:
    run = loop(num_blocks=5)
    add(run, "a", 8, max_tokens=6)
    b = add(run, "b", [9, 9, 9, 9, 9, 9, 9, 9], max_tokens=6)
    run.step()
    # Both need a third block and none is left: a takes one of b's, and nobody is admitted in its place.
    add(run, "c", 1, max_tokens=1)
    assert run.step() == SchedulerOutput([], {"0:a": 1}, {"0:a": [4]}, ["0:b"])
    assert (b.status, b.num_computed_tokens, b.num_preemptions) == (RequestStatus.PREEMPTED, 0, 1)
    assert run.scheduler.stats().num_preemptions_total == 1
    run.run()
    assert run.stream("a").token_ids == continue_prompt(range(1, 9), 6)
    assert run.stream("b").token_ids == continue_prompt([9] * 8, 6)
    stats = run.scheduler.stats()
    assert (stats.num_prompt_tokens_total, stats.prefix_cache_queries_total) == (17, 17)
    returned = next(new for plan in run.plans[1:] for new in plan.new_requests if new.request_id == "0:b")
    assert (returned.token_ids[:8], returned.num_output_tokens) == ([9] * 8, 1)
    admitted = [new.request_id for plan in run.plans for new in plan.new_requests]
    assert admitted == ["0:a", "0:b", "0:b", "0:c"]
    second = run.stream("b").outputs[1]
    assert [event.type for event in second.events] == [PREEMPTED, SCHEDULED]
    assert second.num_cached_tokens == 0


def test_the_one_that_asks_may_be_the_last_itself() -> None:
    run = loop(num_blocks=4)
    a = add(run, "a", 4, max_tokens=3)
    b = add(run, "b", [9, 9, 9, 9], max_tokens=3)
    run.step()
    run.step()
    assert (a.status, b.status) == (RequestStatus.RUNNING, RequestStatus.PREEMPTED)
    run.run()
    assert run.stream("b").token_ids == continue_prompt([9] * 4, 3)


def test_by_priority_the_least_urgent_one_gives_even_what_this_step_gave_it() -> None:
    run = loop(num_blocks=6, policy="priority", max_num_batched_tokens=16)
    low = add(run, "low", 4, priority=9, max_tokens=9)
    run.step()
    high = add(run, "high", [9] * 11, priority=1, max_tokens=9)
    run.step()
    run.step()
    # low, first in order, got its token and its block; then high finds none and takes both.
    plan = run.step()
    assert (low.status, high.status) == (RequestStatus.PREEMPTED, RequestStatus.RUNNING)
    assert (list(plan.num_scheduled_tokens), plan.finished) == (["0:high"], ["0:low"])
    assert "0:low" not in plan.new_blocks
    run.run()
    assert run.stream("low").token_ids == continue_prompt([1, 2, 3, 4], 9)
    assert run.stream("high").token_ids == continue_prompt([9] * 11, 9)


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    run = loop(num_blocks=5, policy="priority")
    add(run, "a", 8, priority=1, max_tokens=6)
    add(run, "b", [9] * 8, priority=2, max_tokens=6)
    run.step()
    add(run, "urgent", [7], priority=0, max_tokens=1)
    # A block of b's is left over and would do for the urgent one.
    plan = run.step()
    assert (plan.num_scheduled_tokens, plan.finished) == ({"0:a": 1}, ["0:b"])
    assert run.scheduler.kv_cache.num_free_blocks == 1
    assert run.step().num_scheduled_tokens == {"0:a": 1, "0:urgent": 1}


def test_equal_priorities_fall_back_to_the_latest_arrival() -> None:
    run = loop(num_blocks=5, policy="priority")
    admitted_first = add(run, "first admitted", 7, arrival_time=2.0, max_tokens=6)
    run.step()
    arrived_first = add(run, "first arrived", [9] * 8, arrival_time=1.0, max_tokens=6)
    run.step()
    run.step()
    # The first in order asks for a block, and gives its own: it arrived later than the other.
    assert (admitted_first.status, arrived_first.status) == (RequestStatus.PREEMPTED, RequestStatus.RUNNING)


def test_who_has_outgrown_the_whole_pool_ends_by_length_and_robs_nobody() -> None:
    run = loop(num_blocks=4)
    add(run, "a", 8, max_tokens=100)
    run.run()
    # Twelve slots: the prompt, four outputs, and a fifth whose own keys and values nobody will need.
    assert run.stream("a").token_ids == continue_prompt(range(1, 9), 5)
    assert run.stream("a").finish_reason is FinishReason.LENGTH
    assert run.stream("a").outputs[-1].new_token_ids == []
    assert run.scheduler.stats().num_preemptions_total == 0


def test_prompt_logprobs_come_once_although_the_prompt_is_computed_twice() -> None:
    run = loop(num_blocks=5)
    add(run, "a", 8, max_tokens=6)
    add(run, "b", [9] * 8, max_tokens=6, prompt_logprobs=0)
    run.run()
    assert run.scheduler.stats().num_preemptions_total > 0
    assert [output.prompt_logprobs is not None for output in run.stream("b").outputs] == [True] + [False] * 5


# Requests that resume.


def test_outputs_of_an_earlier_attempt_go_on_as_outputs() -> None:
    whole = continue_prompt(range(1, 9), 6)
    run = loop()
    add(run, "a", 8, outputs=whole[:4], attempt=1, max_tokens=6)
    plan = run.step()
    assert plan.num_scheduled_tokens == {"0:a": 12}
    assert plan.new_requests[0].num_output_tokens == 4
    run.run()
    first = run.stream("a").outputs[0]
    assert (first.attempt, first.first_token_index, first.new_token_ids) == (1, 4, whole[4:5])
    assert run.stream("a").token_ids == whole[4:]
    assert run.stream("a").finish_reason is FinishReason.LENGTH


def test_cached_outputs_are_no_cached_prompt_tokens() -> None:
    whole = continue_prompt(range(1, 9), 9)
    run = loop()
    add(run, "a", 8, max_tokens=9)
    run.run()
    add(run, "b", 8, outputs=whole[:8], attempt=1, max_tokens=9)
    plan = run.step()
    assert plan.new_requests[0].num_computed_tokens == 12
    assert [output.num_cached_tokens for output in run.stream("b").outputs] == [8]


def test_resumed_requests_are_admitted_ahead_of_new_ones_by_their_first_arrival() -> None:
    run = loop(max_num_seqs=1)
    add(run, "new", 4, max_tokens=1)
    add(run, "second", 4, outputs=[5], arrival_time=8.0, max_tokens=2)
    add(run, "first", 4, outputs=[5], arrival_time=7.0, max_tokens=2)
    run.run()
    assert [new.request_id for plan in run.plans for new in plan.new_requests] == ["0:first", "0:second", "0:new"]


@pytest.mark.parametrize(
    ("outputs", "fields", "reason", "stop_reason"),
    [
        ([5, 6], {"max_tokens": 2}, FinishReason.LENGTH, None),
        ([5, 0], {"ignore_eos": False}, FinishReason.STOP, None),
        ([5, 7], {"stop_token_ids": [7]}, FinishReason.STOP, 7),
        ([5] * 30, {"max_tokens": None}, FinishReason.LENGTH, None),
    ],
)
def test_what_had_ended_already_ends_without_running(
    outputs: list[int], fields: dict[str, Any], reason: FinishReason, stop_reason: int | None
) -> None:
    run = loop(num_blocks=5)
    add(run, "a", 4, outputs=outputs, **fields)
    assert (run.scheduler.stats().num_running_reqs, run.scheduler.has_requests()) == (0, True)
    run.run()
    assert run.stream("a").outputs == [
        EngineCoreOutput(
            "a", 0, len(outputs), [], reason, stop_reason=stop_reason, events=[EngineCoreEvent(QUEUED, 0.5)]
        )
    ]
    assert [plan.num_scheduled_tokens for plan in run.plans] == [{}]


# Refusals and failures.


@pytest.mark.parametrize(
    ("prompt", "error"),
    [(256, ContextLengthExceeded), (13, PromptNeverFits), ([2**31], RequestError)],
)
def test_a_refused_request_was_never_there(prompt: Any, error: type[RequestError]) -> None:
    run = loop(num_blocks=4)
    with pytest.raises(error):
        add(run, "a", prompt)
    assert not run.scheduler.has_requests()
    assert run.scheduler.stats() == SchedulerStats()
    add(run, "a", 4, max_tokens=1)
    run.run()
    assert run.stream("a").finish_reason is FinishReason.LENGTH


def test_a_live_id_is_refused_and_the_live_one_undisturbed() -> None:
    run = loop()
    add(run, "a", 8, max_tokens=3)
    run.step()
    with pytest.raises(DuplicateRequestId):
        add(run, "a", 4)
    add(run, "a", 8, max_tokens=3, client_index=ClientIndex(1))
    run.run()
    assert run.stream("a", 0).token_ids == run.stream("a", 1).token_ids == continue_prompt(range(1, 9), 3)
    add(run, "a", 8, max_tokens=1, attempt=1)


def test_a_failure_in_the_sampler_ends_one_request() -> None:
    run = loop(fail={"0:b": "no token is allowed"})
    for name in "ab":
        add(run, name, 8, max_tokens=2)
    run.run()
    assert run.stream("a").finish_reason is FinishReason.LENGTH
    (output,) = run.stream("b").outputs
    assert (output.finish_reason, output.error) == (
        FinishReason.ERROR,
        OutputError("engine_generate_error", "no token is allowed"),
    )


def test_what_a_failed_request_computed_is_not_found_again() -> None:
    """A prompt of two chunks, of which the first is in the cache before the request fails."""
    run = loop(fail={"0:a": "not finite"}, max_num_batched_tokens=8)
    add(run, "a", 12, max_tokens=2)
    run.run()
    assert run.stream("a").finish_reason is FinishReason.ERROR
    later = add(run, "b", 12, max_tokens=2)
    run.run()
    assert later.num_cached_tokens == 0


def test_a_request_can_be_failed_from_outside() -> None:
    run = loop()
    add(run, "a", 8, max_tokens=9)
    run.step()
    run.scheduler.fail_request("a", CLIENT, EngineGenerateError("its grammar cannot be compiled"))
    run.scheduler.fail_request("a", CLIENT, EngineGenerateError("twice"))
    run.scheduler.fail_request("unknown", CLIENT, EngineGenerateError("who"))
    run.run()
    assert run.stream("a").outputs[1:] == [
        EngineCoreOutput(
            "a",
            0,
            1,
            [],
            FinishReason.ERROR,
            error=OutputError("engine_generate_error", "its grammar cannot be compiled"),
        )
    ]


# Aborts.


def test_an_abort_frees_at_once_says_nothing_and_may_be_repeated() -> None:
    run = loop(max_num_seqs=1)
    running, waiting = add(run, "a", 8, max_tokens=9), add(run, "b", 8, max_tokens=9)
    run.step()
    assert run.scheduler.abort_requests(["a", "a", "b", "unknown"], CLIENT) == [running, waiting]
    assert run.scheduler.abort_requests(["a", "b"], CLIENT) == []
    assert running.status is waiting.status is RequestStatus.FINISHED_ABORTED
    assert run.scheduler.kv_cache.usage == 0.0
    run.run()
    # The runner never had a row for the second one.
    assert run.plans[-1] == SchedulerOutput([], {}, finished=["0:a"])
    assert len(run.stream("a").outputs) == 1
    assert run.stream("b").outputs == []


def test_nobody_aborts_the_request_of_another() -> None:
    run = loop()
    add(run, "a", 8, max_tokens=2)
    assert run.scheduler.abort_requests(["a"], ClientIndex(1)) == []
    run.run()
    assert run.stream("a").finish_reason is FinishReason.LENGTH


def test_an_abort_during_the_step_drops_its_token() -> None:
    run = loop()
    add(run, "a", 8, max_tokens=9)
    add(run, "b", 8, max_tokens=1)
    run.step(during=lambda: run.scheduler.abort_requests(["a"], CLIENT))
    assert run.stream("a").outputs == []
    assert run.stream("b").finish_reason is FinishReason.LENGTH
    run.run()


def test_the_same_id_again_during_the_step_is_another_request() -> None:
    run = loop()
    add(run, "a", 8, max_tokens=2)

    def replace() -> None:
        run.scheduler.abort_requests(["a"], CLIENT)
        add(run, "a", [9] * 8, max_tokens=2, attempt=1)

    run.step(during=replace)
    assert run.stream("a").outputs == []
    run.run()
    assert run.stream("a").token_ids == continue_prompt([9] * 8, 2)


def test_a_client_that_is_gone_takes_its_requests_along() -> None:
    run = loop()
    gone = [add(run, name, 8, client_index=ClientIndex(1)) for name in "ab"]
    add(run, "a", 8, max_tokens=2)
    run.step()
    run.scheduler.fail_request("a", ClientIndex(1), EngineGenerateError("nobody will hear of it"))
    assert run.scheduler.abort_client(ClientIndex(1)) == gone[1:]
    assert run.scheduler.abort_client(ClientIndex(1)) == []
    run.run()
    assert len(run.stream("a", 1).outputs) == 1
    assert run.stream("a", 0).finish_reason is FinishReason.LENGTH


def test_an_engine_that_leaves_answers_everyone() -> None:
    run = loop(max_num_seqs=1)
    add(run, "a", 8, max_tokens=9)
    add(run, "b", 8, max_tokens=9, client_index=ClientIndex(1))
    run.step()
    run.hear(run.scheduler.abort_all(now=7.0))
    assert [run.stream("a").finish_reason, run.stream("b", 1).finish_reason] == [FinishReason.ABORT] * 2
    run.run()
    assert run.scheduler.stats().num_running_reqs == 0


def test_asked_for_an_answer_an_abort_gives_one() -> None:
    run = loop()
    add(run, "a", 8, max_tokens=9)
    run.scheduler.abort_requests(["a"], CLIENT, answer=True)
    run.run()
    assert [output.finish_reason for output in run.stream("a").outputs] == [FinishReason.ABORT]


def test_an_abort_storm_leaves_nothing_behind() -> None:
    run = loop(num_blocks=40, max_num_seqs=16)
    for index in range(2000):
        add(run, f"r{index}", [index % 3] * (1 + index % 40), max_tokens=30, arrival_time=float(index))
        if index % 2:
            victims = [f"r{index - back}" for back in (0, 7, 19, 7)]
            run.scheduler.abort_requests(victims, CLIENT)
        if index % 16 == 0:
            run.step()
    run.scheduler.abort_requests([f"r{index}" for index in range(2000)], CLIENT)
    run.run()
    made = run.scheduler
    assert made.kv_cache.num_free_blocks == 40 - 1
    assert (made._requests, made._running, len(made._waiting), made._left_rows) == ({}, {}, 0, [])
    assert made.kv_cache.request_ids == set()
    assert not made._outbox


# Stats and robustness.


def test_stats_tell_the_state_after_the_step() -> None:
    run = loop(max_num_seqs=1, num_blocks=9)
    add(run, "a", 8, max_tokens=2)
    add(run, "b", 8, max_tokens=2)
    run.step()
    expected = SchedulerStats(
        num_running_reqs=1,
        num_waiting_reqs=1,
        kv_cache_usage=0.25,
        num_steps_total=1,
        num_scheduled_tokens=8,
        prefix_cache_queries_total=8,
        num_prompt_tokens_total=8,
        num_generation_tokens_total=1,
    )
    assert run.scheduler.stats() == expected


def test_every_message_of_a_step_carries_stats_and_time() -> None:
    made = scheduler()
    for client_index in (1, 2):
        made.add_request(request("a", 4, client_index=ClientIndex(client_index), max_tokens=1), 0.0)
    plan = made.schedule(1.0)
    messages = made.update(plan, ScriptedRunner().execute_model(plan), 2.0)
    assert set(messages) == {1, 2}
    assert {(message.scheduler_stats, message.timestamp) for message in messages.values()} == {(made.stats(), 2.0)}


def test_a_runner_that_forgets_a_token_costs_that_request_only() -> None:
    made = scheduler()
    for name in "ab":
        made.add_request(request(name, 4, max_tokens=1), 0.0)
    plan = made.schedule(1.0)
    message = made.update(plan, ModelRunnerOutput({"0:a": [5]}), 2.0)[CLIENT]
    assert [output.finish_reason for output in message.outputs] == [FinishReason.LENGTH, FinishReason.ERROR]
    made.validate_state()


def test_an_idle_scheduler_plans_nothing() -> None:
    made = scheduler()
    assert not made.has_requests()
    plan = made.schedule(1.0)
    assert plan == SchedulerOutput([], {})
    assert made.update(plan, ModelRunnerOutput({}), 1.0) == {}


def test_the_runner_keeps_its_own_lists() -> None:
    made = scheduler()
    made.add_request(one := request("a", 4, max_tokens=9), 0.0)
    (new,) = made.schedule(1.0).new_requests
    new.token_ids.append(99)
    new.block_ids.append(99)
    assert one.token_ids == [1, 2, 3, 4]
    assert made.kv_cache.block_ids("0:a") == [1]


def test_sixteen_outputs_in_a_row_are_numbered_without_a_gap() -> None:
    run = loop()
    add(run, "a", 4, max_tokens=16)
    run.run()
    indexes = [output.first_token_index for output in run.stream("a").outputs]
    assert all(after == before + 1 for before, after in pairwise(indexes))
    assert indexes[0] == 0
