"""Which requests the engine refuses before they wait, each with the error that its client gets. Pure."""

from __future__ import annotations

from collections.abc import Container

from roundhouse.kvcache.manager import KVCacheManager
from roundhouse.protocol.errors import ContextLengthExceeded, DuplicateRequestId, InvalidRequest, PromptNeverFits
from roundhouse.protocol.limits import MAX_TOKEN_ID
from roundhouse.scheduler.config import SchedulerConfig
from roundhouse.scheduler.request import Request


def check_admissible(
    request: Request, live_ids: Container[str], config: SchedulerConfig, kv_cache: KVCacheManager
) -> None:
    """Raises `DuplicateRequestId`, `InvalidRequest`, `ContextLengthExceeded` or `PromptNeverFits`.

    A prompt needs room for one output behind it in the context; in the cache it does not, for the last output's keys
    and values are never read.
    """
    if request.request_id in live_ids:
        raise DuplicateRequestId(f"request {request.external_request_id} is live already", param="request_id")
    if min(request.token_ids) < 0 or max(request.token_ids) > MAX_TOKEN_ID:
        raise InvalidRequest("a token id is negative or over 31 bits", param="prompt")
    num_tokens = request.num_prompt_tokens
    if num_tokens + 1 > config.max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {config.max_model_len} tokens. However, the prompt has "
            f"{num_tokens} tokens and an output needs at least one more. Please shorten the prompt.",
            param="prompt",
        )
    if not kv_cache.can_ever_hold(num_tokens):
        raise PromptNeverFits(
            f"the prompt has {num_tokens} tokens and the whole KV cache of this engine has room for "
            f"{kv_cache.capacity_tokens}",
            param="prompt",
        )
