from roundhouse.frontend.stats import FinishedRequest, IterationStats, RequestStats
from roundhouse.protocol.messages import EngineCoreEvent, EngineCoreOutput, EventType
from roundhouse.protocol.sampling import FinishReason

ENGINE, OTHER = (0, (1, 1)), (1, (1, 1))


def tokens(*token_ids, events=()):
    return EngineCoreOutput("r", 0, 0, list(token_ids), events=list(events))


def test_times_of_a_request():
    stats, iteration = RequestStats(arrival_s=10.0, num_prompt_tokens=5), IterationStats()
    events = [
        EngineCoreEvent(EventType.QUEUED, 1000.0),
        EngineCoreEvent(EventType.SCHEDULED, 1000.5),
        EngineCoreEvent(EventType.PREEMPTED, 1000.6),
        EngineCoreEvent(EventType.SCHEDULED, 1000.7),
    ]
    stats.on_output(tokens(1, events=events), ENGINE, 1001.5, 12.0, iteration)
    stats.on_output(tokens(2, 3), ENGINE, 1003.0, 13.0, iteration)
    assert iteration == IterationStats(
        num_prompt_tokens=5, num_generation_tokens=3, time_to_first_token_s=[2.0], inter_token_s=[1.0]
    )
    assert stats.finish(FinishReason.STOP, 14.0) == FinishedRequest(
        FinishReason.STOP, 5, 3, e2e_s=4.0, queue_s=0.5, prefill_s=1.0, decode_s=1.5
    )


def test_a_request_that_ended_before_its_first_token():
    assert RequestStats(10.0, 5).finish(FinishReason.ABORT, 11.0) == FinishedRequest(
        FinishReason.ABORT, 5, 0, 1.0, None, None, None
    )


def test_clocks_of_two_engines_are_never_compared():
    stats = RequestStats(10.0, 5)
    stats.on_output(tokens(1, events=[EngineCoreEvent(EventType.QUEUED, 1.0)]), ENGINE, 2.0, 11.0, IterationStats())
    stats.on_output(tokens(2), OTHER, 900.0, 12.0, IterationStats())
    finished = stats.finish(FinishReason.STOP, 13.0)
    assert (finished.queue_s, finished.prefill_s, finished.decode_s, finished.e2e_s) == (None, None, None, 3.0)
