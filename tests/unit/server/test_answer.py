"""When an answer starts, how it ends, and what a client that leaves leaves behind."""

import asyncio
from typing import Any

import msgspec
import pytest

from roundhouse.protocol.errors import (
    EngineDeadError,
    EngineGenerateError,
    NoEngine,
    PromptNeverFits,
    RoundhouseError,
)
from roundhouse.server.app import build_app
from tests.support.asgi import JSON_HEADERS, Answer, call, post
from tests.support.scripted_llm import SETTINGS, Delta, Script, ScriptedLLM, server_state, spell

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


def ask(script: Script, body: dict[str, Any] = HI, path: str = CHAT) -> Answer:
    return post(build_app(server_state(ScriptedLLM(script)), SETTINGS), path, body)


def events(answer: Answer) -> list[Any]:
    lines = answer.body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_stream_starts_with_its_first_output_and_ends_with_done() -> None:
    answer = ask(spell("Hi"), HI | {"stream": True})
    assert answer.status == 200
    assert {name: answer.headers[name] for name in ("content-type", "cache-control", "x-accel-buffering")} == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    assert "content-length" not in answer.headers
    # One write for each output: the role with the first text; the end with the last.
    assert [write.count(b"data: ") for write in answer.writes] == [2, 1, 1]
    assert answer.writes[-1] == b"data: [DONE]\n\n"
    assert [event["choices"][0]["finish_reason"] for event in events(answer)] == [None, None, "stop"]


def test_merged_outputs_are_one_write() -> None:
    answer = ask(lambda call: [[Delta("Hel"), Delta("lo", finish_reason="stop")]], HI | {"stream": True})
    assert [write.count(b"data: ") for write in answer.writes] == [3, 1]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (PromptNeverFits("too large for the cache", param="prompt"), 400, None),
        (NoEngine("none"), 503, "true"),
        (EngineDeadError("gone"), 503, "true"),
        (EngineGenerateError("failed"), 500, "false"),
    ],
)
def test_errors_before_the_first_output_are_a_status(
    error: RoundhouseError, status: int, retry: str | None, stream: bool
) -> None:
    answer = ask(lambda call: [error], HI | {"stream": stream})
    assert (answer.status, answer.headers.get("x-should-retry"), answer.json["error"]["code"]) == (
        status,
        retry,
        error.code,
    )
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)


@pytest.mark.parametrize("fault", [EngineDeadError("the engine is gone"), KeyError("/secret/path")])
def test_an_error_in_a_stream_is_its_last_event(fault: Exception) -> None:
    answer = ask(lambda call: [[Delta("Hi")], fault], HI | {"stream": True})
    assert answer.status == 200
    *chunks, last = events(answer)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None]
    expected = ("engine_dead", "the engine is gone")
    if isinstance(fault, KeyError):
        expected = ("internal_error", "The server failed on this request.")
    assert (last["error"]["code"], last["error"]["message"]) == expected


def test_an_error_after_a_part_of_an_answer_is_a_status() -> None:
    assert ask(lambda call: [[Delta("Hi")], EngineDeadError("gone")]).status == 503


@pytest.mark.parametrize("stream", [False, True])
def test_a_choice_that_failed_is_never_shown_as_one(stream: bool) -> None:
    answer = ask(lambda call: [[Delta("", finish_reason="error")]], HI | {"stream": stream})
    assert (answer.status, answer.json["error"]["code"]) == (500, "engine_generate_error")


def test_a_choice_that_the_server_ended_is_no_answer() -> None:
    """Even while another choice goes on."""
    script: Script = lambda call: [[Delta("H"), Delta("H", 1)], [Delta("", 1, "abort")], [Delta("i", 0, "stop")]]  # noqa: E731
    *chunks, last = events(ask(script, HI | {"n": 2, "stream": True}))
    assert {choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]} == {None}
    assert last["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_server_ended_may_be_sent_again(stream: bool) -> None:
    answer = ask(lambda call: [[Delta("", finish_reason="abort")]], HI | {"stream": stream})
    assert (answer.status, answer.headers["retry-after"], answer.json["error"]["code"]) == (503, "1", "shutting_down")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_ends_without_an_output_is_an_error(stream: bool) -> None:
    assert ask(lambda call: [], HI | {"stream": stream}).status == 500


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b", "c"]])
def test_several_prompts_and_one_answer_alike(prompt: Any, stream: bool) -> None:
    answer = ask(spell("Hi"), {"prompt": prompt, "n": 2, "stream": stream}, "/v1/completions")
    texts: dict[int, str] = {}
    reasons: dict[int, list[str]] = {}
    for body in events(answer) if stream else [answer.json]:
        for choice in body["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
            if choice["finish_reason"] is not None:
                reasons.setdefault(choice["index"], []).append(choice["finish_reason"])
    num_choices = 2 * (1 if prompt == "a" else 3)
    assert texts == dict.fromkeys(range(num_choices), "Hi")
    assert reasons == {i: ["stop"] for i in range(num_choices)}


@pytest.mark.parametrize("prompt", ["a", ["a", "b", "c"]], ids=["one prompt", "three prompts"])
@pytest.mark.parametrize("stream", [False, True], ids=["37: whole", "stream"])
@pytest.mark.parametrize("has_begun", [False, True], ids=["37: queued", "begun"])
def test_a_client_that_leaves_aborts_its_requests(prompt: Any, stream: bool, has_begun: bool) -> None:
    async def scenario() -> tuple[ScriptedLLM, Answer]:
        leaves = asyncio.Event()

        def script(request: Any) -> Any:
            # The departure comes while the engine works; it never says another word.
            asyncio.get_running_loop().call_later(0.01, leaves.set)
            return ([[Delta("Hi")]] if has_begun else []) + [asyncio.Event()]

        llm = ScriptedLLM(script)
        body = msgspec.json.encode({"prompt": prompt, "stream": stream})
        app = build_app(server_state(llm), SETTINGS)
        return llm, await call(app, "POST", "/v1/completions", body, JSON_HEADERS, leaves=leaves)

    llm, answer = asyncio.run(scenario())
    assert answer.status == (200 if stream and has_begun else None)
    assert sorted(llm.aborted) == sorted(request.request_id for request in llm.calls)
    assert len(llm.aborted) == (1 if prompt == "a" else 3)


def test_a_client_that_leaves_while_its_socket_is_full_aborts_too() -> None:
    """The generator is then not waiting for an output but for the client."""

    async def scenario() -> ScriptedLLM:
        llm = ScriptedLLM(spell("Hello"))
        app = build_app(server_state(llm), SETTINGS)
        full, leaves = asyncio.Event(), asyncio.Event()
        arriving = [{"type": "http.request", "body": msgspec.json.encode({"prompt": "a", "stream": True})}]

        async def receive() -> dict[str, Any]:
            if arriving:
                return arriving.pop()
            await full.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                full.set()
                await leaves.wait()

        headers = [(name.encode(), value.encode()) for name, value in JSON_HEADERS.items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers, "query_string": b""}
        task = asyncio.create_task(app(scope, receive, send))
        await full.wait()
        while not llm.aborted:  # noqa: ASYNC110
            await asyncio.sleep(0)
        leaves.set()
        await task
        return llm

    llm = asyncio.run(scenario())
    assert llm.aborted == [request.request_id for request in llm.calls]
