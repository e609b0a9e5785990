from __future__ import annotations

from roundhouse.protocol.errors import PromptNeverFits
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import (
    EngineCoreEvent,
    EngineCoreOutput,
    EngineCoreOutputs,
    EventType,
    OutputError,
    SchedulerStats,
)
from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.outputs import Outbox, make_output
from tests.support.builders import request

QUEUED = EngineCoreEvent(EventType.QUEUED, 1.0)


def test_the_first_output_brings_events_and_cached_tokens_once() -> None:
    one = request("a", 3, outputs=[5, 6], attempt=2)
    one.events.append(QUEUED)
    one.num_cached_tokens = 2
    assert make_output(one, [5, 6]) == EngineCoreOutput("a", 2, 0, [5, 6], events=[QUEUED], num_cached_tokens=2)
    one.token_ids.append(7)
    assert make_output(one, [7]) == EngineCoreOutput("a", 2, 2, [7])


def test_an_end_without_tokens_stands_behind_the_last_one() -> None:
    one = request("a", 3, outputs=[5, 6])
    error = PromptNeverFits("no room", param="prompt")
    assert make_output(one, [], finish_reason=FinishReason.ERROR, error=error) == EngineCoreOutput(
        "a", 0, 2, [], FinishReason.ERROR, error=OutputError("prompt_never_fits", "no room", "prompt")
    )


def test_the_outbox_makes_one_message_a_client_and_is_empty_then() -> None:
    outbox = Outbox()
    one, two, three = (EngineCoreOutput(name, 0, 0, [5]) for name in "abc")
    for client_index, output in ((1, one), (2, two), (1, three), (3, one)):
        outbox.put(ClientIndex(client_index), output)
    outbox.drop(ClientIndex(3))
    outbox.drop(ClientIndex(9))
    assert outbox
    stats = SchedulerStats(num_running_reqs=2)
    assert outbox.take(stats, 4.0) == {
        1: EngineCoreOutputs(outputs=[one, three], scheduler_stats=stats, timestamp=4.0),
        2: EngineCoreOutputs(outputs=[two], scheduler_stats=stats, timestamp=4.0),
    }
    assert not outbox
    assert outbox.take(stats, 5.0) == {}
