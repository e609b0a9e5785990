"""What clients are told: the output of one request in one step, and `Outbox`, where outputs wait for their message."""

from __future__ import annotations

from collections import defaultdict

from roundhouse.protocol.errors import RoundhouseError
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    LogprobsLists,
    OutputError,
    PromptLogprobs,
    SchedulerStats,
)
from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.request import Request


def make_output(
    request: Request,
    new_token_ids: list[int],
    *,
    finish_reason: FinishReason | None = None,
    stop_reason: int | None = None,
    new_logprobs: LogprobsLists | None = None,
    prompt_logprobs: PromptLogprobs | None = None,
    error: RoundhouseError | None = None,
) -> EngineCoreOutput:
    """The output that tells of `new_token_ids`, which are the request's last. It takes the request's events along, and
    the first one of a request its cached tokens.
    """
    events = request.events
    num_cached_tokens = 0
    if events:
        request.events = []
    if not request.has_reported:
        request.has_reported = True
        num_cached_tokens = request.num_cached_tokens or 0
    return EngineCoreOutput(
        request.external_request_id,
        request.attempt,
        request.num_output_tokens - len(new_token_ids),
        new_token_ids,
        finish_reason,
        stop_reason,
        new_logprobs,
        prompt_logprobs,
        events,
        num_cached_tokens,
        None if error is None else OutputError(error.code, error.message, error.param),
    )


class Outbox:
    """Outputs by client until they are taken, all of a client's in one message."""

    def __init__(self) -> None:
        self._outputs: defaultdict[ClientIndex, list[EngineCoreOutput]] = defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def put(self, client_index: ClientIndex, output: EngineCoreOutput) -> None:
        self._outputs[client_index].append(output)

    def drop(self, client_index: ClientIndex) -> None:
        """Forgets what nobody will read."""
        self._outputs.pop(client_index, None)

    def take(self, stats: SchedulerStats, now: float) -> dict[ClientIndex, EngineCoreOutputs]:
        """One message for each client that has outputs, each with the stats."""
        taken, self._outputs = self._outputs, defaultdict(list)
        return {
            client_index: EngineCoreOutputs(outputs=outputs, scheduler_stats=stats, timestamp=now)
            for client_index, outputs in taken.items()
        }
