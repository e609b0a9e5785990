"""The two ways to answer a generating request, as ASGI applications: one JSON body, or server-sent events.

Both wait for the engine's first word before they start: what an engine refuses becomes a status, not a broken stream.
Both end their work at once when the client leaves. The stream writes bytes itself, and everything that is ready at one
wake-up is one write. A slow client's `send` waits for its socket; meanwhile the request's collector merges, so that
only this stream gets coarser.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from fastapi import Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from roundhouse.frontend.outputs import RequestOutput, RequestOutputKind
from roundhouse.protocol.errors import EngineGenerateError, RequestError, RoundhouseError, ShuttingDown
from roundhouse.server.chunk import DONE, ChunkTemplate
from roundhouse.server.disconnect import until_disconnect
from roundhouse.server.errors import error_json_of
from roundhouse.server.generation import Generation
from roundhouse.server.keep_alive import Write, kept_alive
from roundhouse.server.merge import Batch, merge
from roundhouse.server.state import ServerState
from roundhouse.server.usage import Usage

log = logging.getLogger(__name__)


class AnswerFormat(Protocol):
    """`ChatFormat` or `CompletionFormat`, made for one request."""

    usage: Usage
    chunks: ChunkTemplate

    def write(self, prompt_index: int, output: RequestOutput, parts: list[bytes]) -> None: ...
    def whole(self, outputs: list[RequestOutput]) -> bytes: ...


class Answer(Response):
    """A response that generates when it is sent. `Response` only so that FastAPI passes it on untouched."""

    def __init__(self, state: ServerState, generation: Generation, answer_format: AnswerFormat) -> None:
        super().__init__()
        self._state = state
        self._generation = generation
        self._format = answer_format

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._generate(scope, receive, send)
        except RequestError as error:
            error.param = self._generation.field_names.get(error.param or "", error.param)
            raise
        except ClientDisconnect:
            # Nobody is left to be told, and half of a stream has no status to change.
            log.info("%s: the client left", self._generation.response_id)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    def _batches(self, output_kind: RequestOutputKind) -> AsyncGenerator[Batch, None]:
        return merge(self._generation.start(self._state, output_kind))


class JsonAnswer(Answer):
    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await until_disconnect(receive, self._body())
        await Response(body, media_type="application/json")(scope, receive, send)

    async def _body(self) -> bytes:
        last: dict[int, RequestOutput] = {}
        async with aclosing(self._batches(RequestOutputKind.FINAL_ONLY)) as batches:
            async for batch in batches:
                for prompt_index, output in batch:
                    _raise_failure(output)
                    last[prompt_index] = output
        if len(last) < len(self._generation.prompts):
            raise EngineGenerateError("the engine ended the request without an output")
        return self._format.whole([last[i] for i in range(len(last))])


class StreamAnswer(Answer):
    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        async with aclosing(self._batches(RequestOutputKind.DELTA)) as batches:
            first = await anext(batches, None)
            if first is None:
                raise EngineGenerateError("the engine ended the request without an output")
            body = self._events(first)
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [
                        (b"content-type", b"text/event-stream; charset=utf-8"),
                        (b"cache-control", b"no-cache"),
                        (b"x-accel-buffering", b"no"),
                    ],
                }
            )
            async with kept_alive(send) as write:
                await write(body)
                last_words = await self._rest(batches, write)
        await send({"type": "http.response.body", "body": last_words, "more_body": False})

    async def _rest(self, batches: AsyncGenerator[Batch, None], write: Write) -> bytes:
        """Writes what follows the first batch and returns the stream's last events."""
        try:
            async for batch in batches:
                if body := self._events(batch):
                    await write(body)
        except RoundhouseError as error:
            log.warning("%s: stream ended by %s: %s", self._generation.response_id, error.code, error.message)
            return b"data: " + error_json_of(error) + b"\n\n" + DONE
        except Exception as error:
            log.exception("%s: stream ended by a fault of the server", self._generation.response_id)
            return b"data: " + error_json_of(error) + b"\n\n" + DONE
        if self._generation.include_usage:
            return self._format.chunks.usage_event(self._format.usage.total()) + DONE
        return DONE

    def _events(self, batch: Batch) -> bytes:
        parts: list[bytes] = []
        for prompt_index, output in batch:
            _raise_failure(output)
            self._format.write(prompt_index, output, parts)
        return b"".join(parts)


def _raise_failure(output: RequestOutput) -> None:
    """A choice that did not come to its own end is never shown as a normal choice."""
    for choice in output.outputs:
        if choice.finish_reason == "error":
            raise EngineGenerateError("the engine failed on this request")
        if choice.finish_reason == "abort":
            # A client that left reads nothing any more, so it was this side that ended the choice.
            raise ShuttingDown("the server ended this request: it is shutting down")
