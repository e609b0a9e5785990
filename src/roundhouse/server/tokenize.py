"""POST /tokenize and POST /detokenize: what the generating routes would make of a text, without generating."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter, Request

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.server.body import read_body
from roundhouse.server.chat_prompt import check_text_fits, render_prompt
from roundhouse.server.decode import decode
from roundhouse.server.models import served_model
from roundhouse.server.openapi import request_body
from roundhouse.server.schema import DetokenizeBody, TokenizeBody
from roundhouse.server.state import ServerSettings, ServerState
from roundhouse.server.unserved import UNSERVED_TOKENIZE, UnservedFields

_tokenize_decoder = msgspec.json.Decoder(TokenizeBody)
_detokenize_decoder = msgspec.json.Decoder(DetokenizeBody)
_unserved = UnservedFields(UNSERVED_TOKENIZE)


def tokenize_routes(state: ServerState, settings: ServerSettings) -> APIRouter:
    router = APIRouter(tags=["tokenize"])

    @router.post("/tokenize", openapi_extra=request_body(TokenizeBody))
    async def tokenize(request: Request) -> dict[str, Any]:
        """The token ids of a text, or of messages as the model's chat template writes them."""
        raw = await read_body(request, settings.max_body_bytes)
        body = decode(_tokenize_decoder, raw)
        _unserved.refuse(raw)
        served_model(settings, body.model)
        if (body.prompt is None) == (not body.messages):
            raise InvalidRequest("one of prompt and messages is needed", param="prompt")
        text = await render_prompt(state, body) if body.prompt is None else body.prompt
        check_text_fits(state, len(text), param="messages" if body.prompt is None else "prompt")
        # A template writes the special tokens itself.
        adds_special = body.prompt is not None if body.add_special_tokens is None else body.add_special_tokens
        token_ids = await asyncio.to_thread(state.tokenizer.encode, text, adds_special)
        return {
            "count": len(token_ids),
            "max_model_len": state.llm.max_model_len,
            "tokens": token_ids,
            "token_strs": [state.tokenizer.token_to_str(i) for i in token_ids] if body.return_token_strs else None,
        }

    @router.post("/detokenize", openapi_extra=request_body(DetokenizeBody))
    async def detokenize(request: Request) -> dict[str, str]:
        """The text of token ids, special tokens included."""
        body = decode(_detokenize_decoder, await read_body(request, settings.max_body_bytes))
        served_model(settings, body.model)
        for token_id in body.tokens:
            if not 0 <= token_id < state.tokenizer.vocab_size:
                raise InvalidRequest(
                    f"tokens: token id {token_id} is outside the vocabulary of {state.tokenizer.vocab_size}",
                    param="tokens",
                )
        return {"prompt": state.tokenizer.decode(body.tokens, skip_special_tokens=False)}

    return router
