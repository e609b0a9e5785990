"""POST /v1/completions."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.types import Scope

from roundhouse.protocol import limits
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.server.answer import JsonAnswer, StreamAnswer
from roundhouse.server.body import BodyReader
from roundhouse.server.cache_salt import request_salt
from roundhouse.server.completion_format import CompletionFormat
from roundhouse.server.decode import decode_field
from roundhouse.server.generation import Generation, Prompt
from roundhouse.server.models import served_model
from roundhouse.server.openapi import request_body
from roundhouse.server.params import check_envelope, check_num_choices, make_sampling_params
from roundhouse.server.request_id import adopt_request_id
from roundhouse.server.schema import CompletionBody, StreamOptions
from roundhouse.server.state import ServerSettings, ServerState
from roundhouse.server.structured_outputs import field_of
from roundhouse.server.unserved import UNSERVED_COMPLETION, UnservedFields

DEFAULT_MAX_TOKENS = 16

_decoder = msgspec.json.Decoder(CompletionBody)
_prompt_decoder = msgspec.json.Decoder(str | list[str | int])
_prompts_of_ids_decoder = msgspec.json.Decoder(list[list[int]])
_unserved = UnservedFields(UNSERVED_COMPLETION)


def completion_routes(state: ServerState, settings: ServerSettings, bodies: BodyReader) -> APIRouter:
    router = APIRouter(tags=["generate"])

    @router.post("/v1/completions", openapi_extra=request_body(CompletionBody))
    async def create_completion(request: Request) -> Response:
        """Continues each prompt. As OpenAI's, with vLLM's further sampling fields."""
        body = await bodies.read(request, _decoder, _unserved)
        request_id = adopt_request_id(request.scope, body.request_id)
        generation = check_completion(body, state, settings, request.scope, response_id=f"cmpl-{request_id}")
        answer_format = CompletionFormat(
            generation, state.tokenizer, echo=bool(body.echo), prompt_only=body.max_tokens == 0
        )
        return (StreamAnswer if body.stream else JsonAnswer)(state, generation, answer_format)

    return router


def check_completion(
    body: CompletionBody, state: ServerState, settings: ServerSettings, scope: Scope, *, response_id: str
) -> Generation:
    """Raises `RequestError`s that name the field at fault."""
    model = served_model(settings, body.model)
    check_envelope(body)
    prompts = checked_prompts(
        parsed_prompt(body.prompt), state.tokenizer.vocab_size, body.add_special_tokens is not False
    )
    check_num_choices(body.n, len(prompts), settings.max_choices)
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and body.echo:
        # The engine always makes a token after a prompt; `CompletionFormat` leaves it out.
        max_tokens = 1
    options = body.stream_options or StreamOptions()
    return Generation(
        response_id=response_id,
        created=int(state.wall()),
        model=model,
        prompts=prompts,
        params=make_sampling_params(
            body,
            state.tokenizer.default_sampling,
            vocab_size=state.tokenizer.vocab_size,
            max_tokens=max_tokens,
            logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
        ),
        priority=body.priority or 0,
        cache_salt=request_salt(scope, body.cache_salt),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
        field_names={"structured_outputs": field_of(body) or "structured_outputs"},
    )


def parsed_prompt(raw: msgspec.Raw) -> str | list[Any]:
    """Counts lists of token ids before they are made: a million of them would hold up everybody for a second."""
    text = bytes(raw)
    decoder: msgspec.json.Decoder[Any] = _prompt_decoder
    if text[:1] == b"[" and text[1:].lstrip()[:1] == b"[":
        decoder = _prompts_of_ids_decoder
        if (num_prompts := text.count(b"[") - 1) > limits.MAX_PROMPTS:
            raise _too_many_prompts(num_prompts)
    prompt = decode_field(decoder, raw, param="prompt", max_bytes=len(text))
    if prompt is None:
        raise InvalidRequest("prompt is needed", param="prompt")
    return prompt


def checked_prompts(
    prompt: str | list[str | int | list[int]], vocab_size: int, add_special_tokens: bool = True
) -> list[Prompt]:
    """A text, ids, a list of texts or a list of ids; never a mix. Raises `InvalidRequest`."""
    if isinstance(prompt, str):
        return [_text_prompt("prompt", prompt, add_special_tokens)]
    if not prompt:
        raise InvalidRequest("prompt may not be empty", param="prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise InvalidRequest(
            "prompt must hold texts, token ids or lists of token ids, not a mix of them", param="prompt"
        )
    if kinds == {int}:
        return [_ids_prompt("prompt", prompt, vocab_size)]
    if len(prompt) > limits.MAX_PROMPTS:
        raise _too_many_prompts(len(prompt))
    if kinds == {str}:
        return [_text_prompt(f"prompt[{i}]", item, add_special_tokens) for i, item in enumerate(prompt)]
    return [_ids_prompt(f"prompt[{i}]", item, vocab_size) for i, item in enumerate(prompt)]


def _too_many_prompts(num_prompts: int) -> InvalidRequest:
    return InvalidRequest(
        f"prompt holds {num_prompts} prompts, at most {limits.MAX_PROMPTS} are served", param="prompt"
    )


def _text_prompt(path: str, text: object, add_special_tokens: bool) -> Prompt:
    assert isinstance(text, str)
    if not text:
        raise InvalidRequest(f"{path} may not be empty", param="prompt")
    return Prompt(text=text, add_special_tokens=add_special_tokens)


def _ids_prompt(path: str, token_ids: object, vocab_size: int) -> Prompt:
    assert isinstance(token_ids, list)
    if not token_ids:
        raise InvalidRequest(f"{path} may not be empty", param="prompt")
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"{path}: token id {token_id} is outside the vocabulary of {vocab_size}", param="prompt"
            )
    return Prompt(token_ids=token_ids)
