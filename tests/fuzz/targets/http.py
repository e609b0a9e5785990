"""An HTTP request → the application → AsyncLLM with its real input processor, over a client that answers at once.

Whatever the bytes: an answer of a status that the API has for it, in JSON or as a stream, and nothing left behind.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from functools import cache
from random import Random
from typing import Any

import msgspec
from fastapi import FastAPI

from roundhouse.frontend.async_llm import AsyncLLM
from roundhouse.frontend.config import FrontendConfig
from roundhouse.frontend.outputs import RequestOutput
from roundhouse.model_store.chat_template import ChatTemplate
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreRequest, LogprobsLists
from roundhouse.server.app import build_app
from roundhouse.server.state import Health, ServerState
from tests.fuzz.mutation import mutate_json, mutate_parcel
from tests.fuzz.parcel import pack, unpack
from tests.fuzz.target import Target, expect
from tests.support.asgi import JSON_HEADERS, Answer, call
from tests.support.scripted_client import ScriptedClient, one_by_one
from tests.support.scripted_llm import CHAT_TEMPLATE, MODEL, SETTINGS
from tests.support.small_tokenizers import byte_level

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
STATUSES = frozenset({200, 400, 404, 408, 409, 413, 415, 422})
"""None of them says that the server is at fault: no input may."""

MAX_ANSWERED_TOKENS = 4
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/b"}}, "c": {"type": "string", "pattern": "^x+$"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"b": {"enum": [1, "two", None]}},
}
_TOKENIZER = byte_level()


def run(data: bytes) -> bool:
    """Parts: a byte that names the path, and the body."""
    parts = [*unpack(data), b"", b""]
    path = PATHS[parts[0][0] % len(PATHS) if parts[0] else 0]
    answer = asyncio.run(_ask(path, parts[1]))
    expect(answer.status in STATUSES, f"{path} answered {answer.status}: {answer.body[:300]!r}")
    _check_body(answer)
    return answer.status == 200


async def _ask(path: str, body: bytes) -> Answer:
    client = ScriptedClient(_tokens_of)
    llm = AsyncLLM(FrontendConfig(), _TOKENIZER, client, random_bits=lambda bits: 7, monotonic=lambda: 100.0)
    app, current = _app()
    current.llm = llm
    try:
        answer = await call(app, "POST", path, body, JSON_HEADERS)
        for request in client.added:
            _check_request(request)
        expect(llm.num_live_requests == 0, "something is left of a request")
        return answer
    finally:
        llm.shutdown()


class _Current:
    """The LLM of this input, in an application that is built once: that takes ten times as long as a request."""

    llm: AsyncLLM

    @property
    def max_model_len(self) -> int:
        return self.llm.max_model_len

    def generate(self, *args: Any, **options: Any) -> AsyncGenerator[RequestOutput, None]:
        return self.llm.generate(*args, **options)


@cache
def _app() -> tuple[FastAPI, _Current]:
    current = _Current()
    state = ServerState(
        llm=current,
        tokenizer=_TOKENIZER,
        chat_template=ChatTemplate({"default": CHAT_TEMPLATE}, {"bos_token": "<s>"}),
        health=lambda: Health.OK,
        wall=lambda: 1000.0,
        new_id=lambda: "0123456789abcdef",
    )
    return build_app(state, SETTINGS), current


def _tokens_of(request: EngineCoreRequest) -> Iterable[EngineCoreOutput]:
    params = request.sampling_params
    assert params is not None
    num_tokens = min(params.max_tokens or 1, MAX_ANSWERED_TOKENS)
    for output in one_by_one(request, [65] * num_tokens):
        if params.logprobs is None:
            yield output
        else:
            logprobs = LogprobsLists([[65, 66]], [[-0.5, -1.5]], [1])
            yield msgspec.structs.replace(output, new_logprobs=logprobs)


def _check_request(request: EngineCoreRequest) -> None:
    """What an engine would refuse, a frontend refuses first."""
    params = request.sampling_params
    assert params is not None
    params.verify(vocab_size=_TOKENIZER.vocab_size)
    expect(params.seed is not None and params.n == 1, f"params for one choice, with a seed: {params}")
    ids = request.prompt_token_ids
    expect(0 < len(ids) < _TOKENIZER.max_model_len, f"a prompt of {len(ids)} tokens")
    expect(min(ids) >= 0 and max(ids) < _TOKENIZER.vocab_size, "a token id outside of the vocabulary")
    expect(len(ids) + (params.max_tokens or 0) <= _TOKENIZER.max_model_len, "more tokens than the context has")


def _check_body(answer: Answer) -> None:
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = answer.body.split(b"\n\n")
        expect(events[-2:] == [b"data: [DONE]", b""], f"a stream ends in {events[-2:]!r}")
        texts = [event.removeprefix(b"data: ") for event in events[:-2]]
    else:
        texts = [answer.body]
    for text in texts:
        value = json.loads(text)
        error = value.get("error")
        expect((error is None) == (answer.status == 200), f"{answer.status} with {text[:300]!r}")


def mutate(parcel: bytes, rng: Random) -> bytes:
    return mutate_parcel(parcel, rng, _mutate_part)


def _mutate_part(place: int, part: bytes, rng: Random) -> bytes:
    return bytes([rng.randrange(len(PATHS))]) if place == 0 and rng.randrange(4) == 0 else mutate_json(part, rng)


def _seeds() -> Iterable[tuple[str, bytes]]:
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi 🙂"}]
    call_made = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call_made]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    ]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    sampling = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "seed": 3,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"65": 2},
        "stop": ["end", "\n"],
        "max_tokens": 4,
        "min_tokens": 1,
        "n": 2,
        "stop_token_ids": [7],
        "allowed_token_ids": [65, 66],
        "cache_salt": "s",
        "priority": 1,
        "user": "u",
        "request_id": "r1",
        "ignore_eos": True,
    }
    streamed = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    kwargs = {"chat_template_kwargs": {"shout": True}, "reasoning_effort": "low"}
    bodies = {
        "chat": (0, {"model": MODEL, "messages": messages, "max_tokens": 3}),
        "chat_stream": (
            0,
            {"messages": messages, **sampling, **streamed, "logprobs": True, "top_logprobs": 1, **kwargs},
        ),
        "chat_tools": (0, {"messages": talk, "tools": [tool], "tool_choice": "none", "max_completion_tokens": 2}),
        "chat_continued": (0, {"messages": messages, "add_generation_prompt": False, "continue_final_message": True}),
        "chat_schema": (
            0,
            {
                "messages": messages,
                "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
            },
        ),
        "chat_json": (0, {"messages": messages, "response_format": {"type": "json_object"}, **streamed}),
        "completion_guided": (1, {"prompt": "once", "structured_outputs": {"regex": "[a-z]+( [a-z]+)*"}, "n": 2}),
        "completion_schema": (1, {"prompt": "once", "structured_outputs": {"json": SCHEMA}}),
        "completion_choice": (1, {"prompt": "once", "guided_choice": ["yes", "no"]}),
        "completion_grammar": (1, {"prompt": "once", "guided_grammar": 'start: "a" start | "b"'}),
        "completion": (1, {"prompt": "once", **sampling, "logprobs": 1}),
        "completion_ids": (1, {"prompt": [[65, 66], [67]], **streamed, "echo": False, "max_tokens": 2}),
        "tokenize": (2, {"prompt": "a text", "return_token_strs": True}),
        "tokenize_chat": (2, {"messages": messages}),
        "detokenize": (3, {"tokens": [65, 66, 260]}),
    }
    for name, (path, body) in bodies.items():
        yield name, pack([bytes([path]), json.dumps(body, ensure_ascii=False).encode()])


HTTP = Target("http", run, mutate, _seeds)
