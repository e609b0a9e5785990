"""When a request ends by itself. Pure; asked after every token. Stop strings are the frontend's: it has the text."""

from __future__ import annotations

from dataclasses import dataclass

from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class EndOfRequest:
    """stop_reason: the stop token id; None for the model's own end of sequence and for length."""

    finish_reason: FinishReason
    stop_reason: int | None = None


END_OF_SEQUENCE = EndOfRequest(FinishReason.STOP)
_LENGTH = EndOfRequest(FinishReason.LENGTH)


def find_end(request: Request, max_model_len: int) -> EndOfRequest | None:
    """Whether the request's last token, an output, ends it: EOS before stop token ids before length.

    Before `min_tokens` outputs neither EOS nor a stop token counts (the sampler masks them); length always does.
    """
    token_id = request.token_ids[-1]
    params = request.sampling_params
    if token_id in request.stop_token_ids and request.num_output_tokens >= params.min_tokens:
        if token_id == request.eos_token_id and not params.ignore_eos:
            return END_OF_SEQUENCE
        return EndOfRequest(FinishReason.STOP, stop_reason=token_id)
    if request.num_tokens >= max_model_len:
        return _LENGTH
    if params.max_tokens is not None and request.num_output_tokens >= params.max_tokens:
        return _LENGTH
    return None
