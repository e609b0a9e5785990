"""POST /v1/chat/completions."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from roundhouse.protocol import limits
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.server.answer import JsonAnswer, StreamAnswer
from roundhouse.server.body import BodyReader
from roundhouse.server.cache_salt import request_salt
from roundhouse.server.chat_format import ChatFormat
from roundhouse.server.chat_prompt import render_prompt
from roundhouse.server.generation import Generation, Prompt
from roundhouse.server.models import served_model
from roundhouse.server.openapi import request_body
from roundhouse.server.params import check_envelope, check_num_choices, make_sampling_params
from roundhouse.server.request_id import adopt_request_id
from roundhouse.server.schema import ChatCompletionBody, StreamOptions
from roundhouse.server.state import ServerSettings, ServerState
from roundhouse.server.structured_outputs import field_of
from roundhouse.server.unserved import UNSERVED_CHAT, UnservedFields

_decoder = msgspec.json.Decoder(ChatCompletionBody)
_unserved = UnservedFields(UNSERVED_CHAT)


def chat_routes(state: ServerState, settings: ServerSettings, bodies: BodyReader) -> APIRouter:
    router = APIRouter(tags=["generate"])

    @router.post("/v1/chat/completions", openapi_extra=request_body(ChatCompletionBody))
    async def create_chat_completion(request: Request) -> Response:
        """Answers a conversation. As OpenAI's, with vLLM's further sampling fields."""
        body = await bodies.read(request, _decoder, _unserved)
        request_id = adopt_request_id(request.scope, body.request_id)
        generation = await check_chat(body, state, settings, request.scope, response_id=f"chatcmpl-{request_id}")
        return (StreamAnswer if body.stream else JsonAnswer)(state, generation, ChatFormat(generation))

    return router


async def check_chat(
    body: ChatCompletionBody, state: ServerState, settings: ServerSettings, scope: Scope, *, response_id: str
) -> Generation:
    """Raises `RequestError`s that name the field at fault, or what the chat template raises."""
    model = served_model(settings, body.model)
    check_envelope(body)
    check_num_choices(body.n, 1, settings.max_choices)
    params = make_sampling_params(
        body,
        state.tokenizer.default_sampling,
        vocab_size=state.tokenizer.vocab_size,
        max_tokens=_checked_max_tokens(body),
        logprobs=_checked_logprobs(body),
    )
    text = await render_prompt(state, body)
    options = body.stream_options or StreamOptions()
    return Generation(
        response_id=response_id,
        created=int(state.wall()),
        model=model,
        # The template writes the special tokens itself.
        prompts=[Prompt(text=text, add_special_tokens=body.add_special_tokens is True)],
        params=params,
        priority=body.priority or 0,
        cache_salt=request_salt(scope, body.cache_salt),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        field_names={"prompt": "messages", "structured_outputs": field_of(body) or "structured_outputs"}
        | ({} if body.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}),
    )


def _checked_max_tokens(body: ChatCompletionBody) -> int | None:
    """None: as many as the context has room for."""
    if body.max_completion_tokens is None:
        return body.max_tokens
    if body.max_completion_tokens < 1:
        raise InvalidRequest(
            f"max_completion_tokens must be at least 1, got {body.max_completion_tokens}", param="max_completion_tokens"
        )
    return body.max_completion_tokens


def _checked_logprobs(body: ChatCompletionBody) -> int | None:
    if body.top_logprobs is None:
        return 0 if body.logprobs else None
    if not 0 <= body.top_logprobs <= limits.MAX_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs must be between 0 and {limits.MAX_LOGPROBS}, got {body.top_logprobs}", param="top_logprobs"
        )
    if not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return body.top_logprobs
