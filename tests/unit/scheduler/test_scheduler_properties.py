"""Random traces through the scripted runner: whatever the pool, the budget and the company, each request says what it
says alone, ends once and in time, and no block is lost or shared by mistake (checked after every step).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import EngineCoreRequest
from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.config import Policy
from roundhouse.scheduler.request import Request
from tests.support.builders import CLIENT, engine_core_request, scheduler
from tests.support.scheduler_loop import SchedulerLoop
from tests.support.scripted_runner import ScriptedRunner

BLOCK_SIZE = 4
VOCAB_SIZE = 12
"""So few that EOS, stop tokens and equal continuations are common."""

MAX_MODEL_LEN = 48
PREFIX = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it comes, and the one before or during which it is aborted, if any."""

    message: EngineCoreRequest
    client_index: ClientIndex
    step: int
    abort_step: int | None
    aborts_during: bool


@dataclass(frozen=True)
class Engine:
    num_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    policy: Policy
    enable_prefix_caching: bool
    long_prefill_token_threshold: int


engines = st.builds(
    Engine,
    # From a pool that the longest request outgrows to one that holds everything.
    num_blocks=st.one_of(st.integers(7, 16), st.just(400)),
    max_num_batched_tokens=st.one_of(st.integers(1, 20), st.just(1000)),
    max_num_seqs=st.integers(1, 8),
    policy=st.sampled_from(["fcfs", "priority"]),
    enable_prefix_caching=st.booleans(),
    long_prefill_token_threshold=st.sampled_from([0, 3]),
)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    made: list[Arrival] = []
    for index in range(draw(st.integers(1, 10))):
        prompt = PREFIX[: draw(st.integers(0, 16))] + draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
        max_tokens = draw(st.one_of(st.none(), st.integers(1, 20)))
        message = engine_core_request(
            f"r{index}",
            prompt,
            arrival_time=float(draw(st.integers(0, 5))),
            priority=draw(st.integers(0, 2)),
            cache_salt=draw(st.sampled_from([None, None, "salt"])),
            seed=draw(st.integers(0, 1)),
            child_index=draw(st.integers(0, 1)),
            ignore_eos=draw(st.booleans()),
            stop_token_ids=draw(st.sampled_from([[], [7], [7, 8]])),
            max_tokens=max_tokens,
            min_tokens=draw(st.integers(0, min(6, max_tokens or 6))),
            prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        )
        made.append(
            Arrival(
                message=message,
                client_index=ClientIndex(draw(st.integers(0, 1))),
                step=draw(st.integers(0, 12)),
                abort_step=draw(st.one_of(st.none(), st.none(), st.integers(0, 30))),
                aborts_during=draw(st.booleans()),
            )
        )
    return made


def make_loop(engine: Engine) -> SchedulerLoop:
    made = scheduler(
        num_blocks=engine.num_blocks,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=engine.enable_prefix_caching,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        policy=engine.policy,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
    )
    return SchedulerLoop(made, ScriptedRunner(block_size=BLOCK_SIZE, vocab_size=VOCAB_SIZE))


ROOMY = Engine(400, 1000, 8, "fcfs", False, 0)


def add(run: SchedulerLoop, message: EngineCoreRequest, client_index: ClientIndex = CLIENT) -> None:
    params = message.sampling_params
    assert params is not None
    run.scheduler.add_request(Request.from_engine_core_request(message, client_index, params.seed or 0), 0.0)


def say_alone(message: EngineCoreRequest) -> tuple[list[int], FinishReason | None, int | str | None]:
    """What the request says to an empty engine with room for everything, and why it ends."""
    run = make_loop(ROOMY)
    add(run, message)
    run.run()
    stream = run.stream(message.request_id)
    return stream.token_ids, stream.finish_reason, stream.outputs[-1].stop_reason


def bound_on_steps(trace: list[Arrival]) -> int:
    """Every step computes a token, and the most urgent request never loses its blocks: with nobody new, its end is at
    most its own length away, plus what those ahead of it in the step may take first. Twice that for each is generous.
    """
    return 13 + 2 * len(trace) * (MAX_MODEL_LEN + 2)


def run_trace(engine: Engine, trace: list[Arrival]) -> SchedulerLoop:
    run = make_loop(engine)
    limit = bound_on_steps(trace)
    last = max(a.step for a in trace)
    step = 0
    while step <= last or run.scheduler.has_requests():
        assert step <= limit, "a request starves"
        for a in trace:
            if a.step == step:
                add(run, a.message, a.client_index)
        leaving = [a for a in trace if a.abort_step == step]

        def abort(during: bool, leaving: list[Arrival] = leaving) -> None:
            for a in leaving:
                if a.aborts_during is during:
                    run.scheduler.abort_requests([a.message.request_id], a.client_index)

        abort(during=False)
        run.step(during=lambda abort=abort: abort(during=True))
        step += 1
    return run


@settings(max_examples=100)
@given(engines, arrivals())
def test_every_request_says_what_it_says_alone_and_ends_once(engine: Engine, trace: list[Arrival]) -> None:
    run = run_trace(engine, trace)
    assert run.runner.rows == {}
    assert run.scheduler.kv_cache.num_free_blocks == engine.num_blocks - 1
    stats = run.scheduler.stats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage) == (0, 0, 0.0)
    event(f"preempts: {stats.num_preemptions_total > 0}")
    event(f"hits: {stats.prefix_cache_hits_total > 0}")
    capacity = (engine.num_blocks - 1) * BLOCK_SIZE
    for a in trace:
        stream = run.stream(a.message.request_id, a.client_index)
        token_ids, finish_reason, stop_reason = say_alone(a.message)
        # `Stream.hear` has checked that nothing follows an end and that the token indexes have no gap.
        if stream.finish_reason is None:
            assert a.abort_step is not None
            assert a.abort_step >= a.step
            assert stream.token_ids == token_ids[: len(stream.token_ids)]
        elif len(a.message.prompt_token_ids) + len(stream.token_ids) > capacity:
            event("outgrows the pool")
            assert stream.token_ids == token_ids[: capacity + 1 - len(a.message.prompt_token_ids)]
            assert stream.finish_reason in (FinishReason.LENGTH, finish_reason)
        else:
            end = stream.outputs[-1]
            assert (stream.token_ids, end.finish_reason, end.stop_reason) == (token_ids, finish_reason, stop_reason)


@settings(max_examples=60)
@given(engines, arrivals(), st.data())
def test_a_request_that_resumes_elsewhere_goes_on_where_it_was(
    engine: Engine, trace: list[Arrival], data: st.DataObject
) -> None:
    """Each request is cut at any point of its output and comes back with it, among the others."""
    cuts: list[tuple[EngineCoreRequest, list[int], FinishReason | None]] = []
    run = make_loop(replace(engine, num_blocks=max(engine.num_blocks, 14)))
    for a in trace:
        token_ids, finish_reason, _ = say_alone(a.message)
        cut = data.draw(st.integers(0, len(token_ids)))
        add(run, msgspec.structs.replace(a.message, output_token_ids=token_ids[:cut], attempt=1))
        cuts.append((a.message, token_ids[cut:], finish_reason))
    run.run(max_steps=bound_on_steps(trace))
    for message, rest, finish_reason in cuts:
        stream = run.stream(message.request_id)
        assert (stream.token_ids, stream.finish_reason) == (rest, finish_reason)


@settings(max_examples=60)
@given(arrivals(), st.integers(7, 12), st.integers(1, 8))
def test_first_come_first_served_admits_in_that_order(trace: list[Arrival], num_blocks: int, max_num_seqs: int) -> None:
    run = make_loop(Engine(num_blocks, 6, max_num_seqs, "fcfs", True, 0))
    for a in trace:
        add(run, a.message)
    run.run(max_steps=bound_on_steps(trace))
    admitted = [new.request_id for plan in run.plans for new in plan.new_requests]
    assert list(dict.fromkeys(admitted)) == [f"0:{a.message.request_id}" for a in trace]
