"""The runner's result → one request's progress: its new tokens, whether they end it, what its client hears."""

from __future__ import annotations

from roundhouse.protocol.errors import EngineGenerateError
from roundhouse.protocol.messages import EngineCoreOutput, LogprobsLists
from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.outputs import make_output
from roundhouse.scheduler.request import Request
from roundhouse.scheduler.step import ModelRunnerOutput
from roundhouse.scheduler.stop import END_OF_SEQUENCE, EndOfRequest, find_end


def advance_request(
    request: Request, num_scheduled_tokens: int, result: ModelRunnerOutput, max_model_len: int
) -> EngineCoreOutput | None:
    """Takes what a step brought for `request`: its computed tokens, then its sampled ones up to the one that ends it.

    Returns None while it is in its prompt. An output that finishes the request is for the caller to act on.
    """
    request_id = request.request_id
    failure = result.failed.get(request_id)
    if failure is not None:
        return make_output(request, [], finish_reason=FinishReason.ERROR, error=EngineGenerateError(failure))
    request.num_computed_tokens += num_scheduled_tokens
    sampled = result.sampled_token_ids.get(request_id)
    if not sampled:
        if request.num_computed_tokens < request.num_tokens:
            return None
        # It would never be scheduled again: nothing is left to compute.
        error = EngineGenerateError("the model runner returned no token")
        return make_output(request, [], finish_reason=FinishReason.ERROR, error=error)
    is_first = request.num_output_tokens == 0
    new_token_ids, end = _append_tokens(request, sampled, max_model_len)
    if end is None and request_id in result.ended:
        end = END_OF_SEQUENCE
    return make_output(
        request,
        new_token_ids,
        finish_reason=end.finish_reason if end else None,
        stop_reason=end.stop_reason if end else None,
        new_logprobs=_first_rows(result.logprobs.get(request_id), len(new_token_ids)),
        # A request that resumes computes its prompt again; its client has these rows.
        prompt_logprobs=result.prompt_logprobs.get(request_id) if is_first else None,
    )


def _append_tokens(request: Request, sampled: list[int], max_model_len: int) -> tuple[list[int], EndOfRequest | None]:
    for count, token_id in enumerate(sampled, start=1):
        request.token_ids.append(token_id)
        end = find_end(request, max_model_len)
        if end is not None:
            return sampled[:count], end
    return sampled, None


def _first_rows(logprobs: LogprobsLists | None, num_rows: int) -> LogprobsLists | None:
    if logprobs is None or len(logprobs.ranks) == num_rows:
        return logprobs
    return LogprobsLists(logprobs.token_ids[:num_rows], logprobs.logprobs[:num_rows], logprobs.ranks[:num_rows])
