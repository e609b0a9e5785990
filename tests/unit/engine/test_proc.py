from __future__ import annotations

import pytest

from roundhouse.engine.inbox import ShutdownAsked
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import (
    AbortRequests,
    EngineCoreOutputs,
    EngineCoreRequest,
    StartDPWave,
    UtilityOutput,
    UtilityRequest,
)
from roundhouse.protocol.sampling import FinishReason
from roundhouse.transport.items import Drain, LinkFailed, OutputItem, Outputs, Received, SessionLost, SessionOpened
from tests.support.builders import engine_core_request
from tests.support.engine_parts import Proc

A, B = ClientIndex(1), ClientIndex(2)


def add(request_id: str, client_index: ClientIndex = A, **params: object) -> Received:
    return Received(client_index, engine_core_request(request_id, [1, 2, 3], ignore_eos=True, **params))


def leave_when_idle(engine: Proc) -> None:
    engine.inbox.put(ShutdownAsked())
    engine.proc.run_busy_loop()


def ends(items: list[OutputItem]) -> list[tuple[ClientIndex, str, FinishReason]]:
    return [
        (item.client_index, output.request_id, output.finish_reason)
        for item in items
        if isinstance(item, Outputs)
        for output in item.outputs.outputs
        if output.finish_reason is not None
    ]


def stats_only(items: list[OutputItem]) -> list[tuple[ClientIndex, int]]:
    """(client, running requests) of the messages that carry nothing but the load."""
    return [
        (item.client_index, item.outputs.scheduler_stats.num_running_reqs)
        for item in items
        if isinstance(item, Outputs) and not item.outputs.outputs and item.outputs.scheduler_stats is not None
    ]


def test_one_message_a_step_for_each_client() -> None:
    engine = Proc()
    for client_index in (A, B):
        engine.inbox.put(SessionOpened(client_index))
        for name in ("x", "y"):
            engine.inbox.put(add(name, client_index, max_tokens=2))
    leave_when_idle(engine)
    messages = [item for item in engine.sent() if isinstance(item, Outputs) and item.outputs.outputs]
    assert [(m.client_index, [o.request_id for o in m.outputs.outputs]) for m in messages] == [
        (A, ["x", "y"]),
        (B, ["x", "y"]),
    ] * 2


def test_a_drain_lets_what_runs_end_and_turns_new_requests_away() -> None:
    engine = Proc()
    engine.inbox.put(add("runs", max_tokens=3))
    arrived = iter([ShutdownAsked(), add("late")])
    engine.executor.during_step = lambda: [engine.inbox.put(item) for item in [next(arrived, None)] if item] and None
    engine.proc.run_busy_loop()
    items = engine.sent()
    assert [item for item in items if isinstance(item, Drain)] == [Drain("shutdown", 10.0)]
    assert sorted(ends(items)) == [(A, "late", FinishReason.ABORT), (A, "runs", FinishReason.LENGTH)]


def test_at_the_deadline_what_still_runs_is_aborted() -> None:
    engine = Proc(drain_grace_s=10.0)
    engine.inbox.put(add("runs", max_tokens=200))
    engine.inbox.put(ShutdownAsked())

    def tick() -> None:
        engine.now += 1.0

    engine.executor.during_step = tick
    engine.proc.run_busy_loop()
    assert ends(engine.sent()) == [(A, "runs", FinishReason.ABORT)]
    assert engine.now == 10.0 + 1.0, "ten steps, and an empty one in which the runner drops the row"


def test_a_lost_session_ends_its_requests_and_the_others_hear_of_the_load() -> None:
    engine = Proc()
    for item in (SessionOpened(A), SessionOpened(B), add("x", A), SessionLost(A)):
        engine.inbox.put(item)
    leave_when_idle(engine)
    items = engine.sent()
    assert ends(items) == []
    assert stats_only(items)[0] == (B, 0)
    assert engine.proc.core.stats().kv_cache_usage == 0.0


def test_an_abort_storm_leaves_the_load_at_zero_although_no_step_follows() -> None:
    engine = Proc()
    engine.inbox.put(SessionOpened(A))
    names = [f"r{i}" for i in range(50)]
    for name in names:
        engine.inbox.put(add(name, max_tokens=100))
    engine.executor.during_step = lambda: engine.inbox.put(Received(A, AbortRequests(names)))
    leave_when_idle(engine)
    assert stats_only(engine.sent())[-1] == (A, 0)
    assert engine.proc.status.load == engine.proc.core.stats()
    assert engine.proc.status.step_started is None


def test_a_request_that_cannot_be_built_is_answered_without_a_step() -> None:
    engine = Proc()
    engine.inbox.put(Received(A, EngineCoreRequest("bad", [], None, 0.0)))
    leave_when_idle(engine)
    assert ends(engine.sent()) == [(A, "bad", FinishReason.ERROR)]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("reset_prefix_cache", UtilityOutput(7, result=True)),
        ("__class__", UtilityOutput(7, failure_message="no utility is called '__class__'")),
    ],
)
def test_utilities_are_a_closed_list(method: str, answer: UtilityOutput) -> None:
    engine = Proc()
    engine.inbox.put(Received(A, UtilityRequest(7, method)))
    leave_when_idle(engine)
    assert engine.sent()[0] == Outputs(A, EngineCoreOutputs(utility_output=answer))


def test_a_wave_start_is_ignored_outside_a_lock_step_group() -> None:
    engine = Proc()
    engine.inbox.put(Received(A, StartDPWave(1)))
    leave_when_idle(engine)
    assert [type(item) for item in engine.sent()] == [Drain]


def test_a_broken_link_ends_the_loop() -> None:
    engine = Proc()
    engine.inbox.put(LinkFailed("no more files"))
    with pytest.raises(RuntimeError, match="no more files"):
        engine.proc.run_busy_loop()
