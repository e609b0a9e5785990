"""POST /tokenize and POST /detokenize: what the generating routes would make of a text, without generating."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from roundhouse.frontend.faults import is_fault
from roundhouse.protocol import limits
from roundhouse.protocol.errors import EngineGenerateError, InvalidRequest, RoundhouseError
from roundhouse.server.body import BodyReader
from roundhouse.server.chat_prompt import check_text_fits, render_prompt
from roundhouse.server.models import served_model
from roundhouse.server.openapi import request_body
from roundhouse.server.schema import DetokenizeBody, TokenizeBody
from roundhouse.server.state import ServerSettings, ServerState
from roundhouse.server.unserved import UNSERVED_TOKENIZE, UnservedFields

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

_tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)
_unserved = UnservedFields(UNSERVED_TOKENIZE)


def tokenize_routes(state: ServerState, settings: ServerSettings, bodies: BodyReader) -> APIRouter:
    router = APIRouter(tags=["tokenize"])

    @router.post("/tokenize", openapi_extra=request_body(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """The token ids of a text, or of messages as the model's chat template writes them."""
        body = await bodies.read(request, _tokenize_decoder, _unserved)
        served_model(settings, body.model)
        if (body.prompt is None) == (not body.messages):
            raise InvalidRequest("one of prompt and messages is needed", param="prompt")
        text = await render_prompt(state, body) if body.prompt is None else body.prompt
        check_text_fits(state, len(text), param="messages" if body.prompt is None else "prompt")
        # A template writes the special tokens itself.
        adds_special = body.prompt is not None if body.add_special_tokens is None else body.add_special_tokens
        answer = await _off_the_loop(_tokenize, state, text, adds_special, bool(body.return_token_strs))
        return Response(answer, media_type="application/json")

    @router.post("/detokenize", openapi_extra=request_body(DetokenizeBody))
    async def detokenize(request: Request) -> dict[str, str]:
        """The text of token ids, special tokens included."""
        body = await bodies.read(request, _detokenize_decoder)
        served_model(settings, body.model)
        max_tokens = limits.MAX_DETOKENIZED_CONTEXTS * state.llm.max_model_len
        if len(body.tokens) > max_tokens:
            raise InvalidRequest(
                f"tokens holds {len(body.tokens)} tokens, at most {max_tokens} are served", param="tokens"
            )
        size = state.tokenizer.vocab_size
        for token_id in (min(body.tokens, default=0), max(body.tokens, default=0)):
            if not 0 <= token_id < size:
                raise InvalidRequest(f"tokens: token id {token_id} is outside the vocabulary of {size}", param="tokens")
        text = await _off_the_loop(state.tokenizer.decode, body.tokens, skip_special_tokens=False)
        return {"prompt": text}

    return router


async def _off_the_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Whatever breaks inside the tokenizer is an error of this request."""
    try:
        return await asyncio.to_thread(work, *args, **kwargs)
    except BaseException as error:
        if isinstance(error, RoundhouseError) or not is_fault(error):
            raise
        log.exception("the tokenizer failed")
        raise EngineGenerateError("the tokenizer failed on this request") from error


def _tokenize(state: ServerState, text: str, add_special_tokens: bool, with_strs: bool) -> bytes:
    """The answer's JSON; off the event loop, since a text may be long."""
    token_ids = state.tokenizer.encode(text, add_special_tokens)
    return msgspec.json.encode(
        {
            "count": len(token_ids),
            "max_model_len": state.llm.max_model_len,
            "tokens": token_ids,
            "token_strs": [state.tokenizer.token_to_str(token_id) for token_id in token_ids] if with_strs else None,
        }
    )
