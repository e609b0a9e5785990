"""The assembled application: routes that do not exist, bodies that are none, and anything at all."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.protocol import limits
from roundhouse.server.app import build_app
from roundhouse.server.schema import ChatCompletionBody, CompletionBody, DetokenizeBody, TokenizeBody
from roundhouse.server.state import ServerSettings
from roundhouse.server.unserved import UNSERVED_CHAT
from tests.support.asgi import JSON_HEADERS, call, get, post
from tests.support.scripted_llm import MODEL, SETTINGS, ScriptedLLM, server_state, spell

BODIES = (ChatCompletionBody, CompletionBody, TokenizeBody, DetokenizeBody)
ROUTES = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]


def app(settings: ServerSettings = SETTINGS) -> Any:
    return build_app(server_state(ScriptedLLM(spell("Hello"))), settings)


@pytest.mark.parametrize("path", ["/nope", "/v1/models/", "/v1/chat/completions/", "//v1/models", "/V1/models"])
def test_unknown_routes_answer_in_the_same_shape(path: str) -> None:
    answer = get(app(), path)
    error = answer.json["error"]
    assert (answer.status, error["type"]) == (404, "NotFoundError")


def test_the_wrong_method_answers_in_the_same_shape() -> None:
    answer = get(app(), "/v1/completions")
    assert (answer.status, answer.headers["allow"], answer.json["error"]) == (
        405,
        "POST",
        {
            "message": "GET /v1/completions: Method Not Allowed",
            "type": "invalid_request_error",
            "param": None,
            "code": "method_not_allowed",
        },
    )


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"{}x", b"[" * 200_000, b'{"a":' * 200_000], ids=range(9)
)
def test_malformed_bodies_are_refused_on_every_route(path: str, body: bytes) -> None:
    answer = post(app(), path, body)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("headers", [{}, {"content-type": "text/plain"}, {"content-type": "multipart/form-data"}])
def test_another_content_type_is_refused_on_every_route(path: str, headers: dict[str, str]) -> None:
    answer = asyncio.run(call(app(), "POST", path, b"{}", headers))
    assert (answer.status, answer.json["error"]["param"]) == (400, "content-type")


@pytest.mark.parametrize("path", ROUTES)
def test_a_body_over_the_limit_is_refused_on_every_route(path: str) -> None:
    small = ServerSettings(served_model_names=(MODEL,), max_body_bytes=100)
    answer = asyncio.run(call(app(small), "POST", path, b" " * 101, JSON_HEADERS, chunk_bytes=10))
    assert (answer.status, answer.json["error"]["code"]) == (413, "request_too_large")


def test_the_limit_is_the_projects() -> None:
    assert SETTINGS.max_body_bytes == limits.MAX_BODY_BYTES


@pytest.mark.parametrize("path", ROUTES)
def test_an_unknown_model_is_not_found_on_every_route(path: str) -> None:
    body = {"model": "no", "prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1]}
    answer = post(app(), path, body)
    assert (answer.status, answer.json["error"]["code"], answer.json["error"]["param"]) == (
        404,
        "model_not_found",
        "model",
    )


def test_a_fault_of_ours_says_nothing_of_itself() -> None:
    fault, sent = KeyError("/secret/path"), []
    app = build_app(server_state(ScriptedLLM(lambda call: [fault])), SETTINGS)

    async def keep(scope: Any, receive: Any, send: Any) -> None:
        async def send_and_keep(message: Any) -> None:
            sent.append(message)
            await send(message)

        await app(scope, receive, send_and_keep)

    # After the answer it is raised, for the server's log.
    with pytest.raises(KeyError):
        post(keep, "/v1/completions", {"prompt": "a"}, {"x-request-id": "r"})
    start, body = sent
    assert (start["status"], dict(start["headers"])[b"x-request-id"]) == (500, b"r")
    assert msgspec.json.decode(body["body"])["error"]["message"] == "The server failed on this request."


def test_two_apps_are_two() -> None:
    first, second = ScriptedLLM(spell("a")), ScriptedLLM(spell("b"))
    apps = [build_app(server_state(llm), SETTINGS) for llm in (first, second)]
    texts = [post(one, "/v1/completions", {"prompt": "x"}).json["choices"][0]["text"] for one in apps]
    assert texts == ["a", "b"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = {"role", "content", *UNSERVED_CHAT}.union(*(body.__struct_fields__ for body in BODIES))
FIELDS = st.sampled_from(sorted(NAMES))
FUZZED_APP = app()


@settings(max_examples=300)
@given(path=st.sampled_from(ROUTES), body=st.dictionaries(FIELDS, JSON_VALUES, max_size=6), is_filled=st.booleans())
def test_any_json_ends_in_an_answer_or_a_refusal(path: str, body: dict[str, Any], is_filled: bool) -> None:
    if is_filled:
        body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "tokens": [1], "max_tokens": 3} | body
    check(path, json.dumps(body).encode())


@settings(max_examples=150)
@given(path=st.sampled_from(ROUTES), message=st.dictionaries(FIELDS, JSON_VALUES, max_size=3))
def test_any_message_ends_in_an_answer_or_a_refusal(path: str, message: dict[str, Any]) -> None:
    check(path, json.dumps({"messages": [{"role": "user", "content": "hi"} | message], "max_tokens": 3}).encode())


@settings(max_examples=100)
@given(path=st.sampled_from(ROUTES), body=st.binary(max_size=64))
def test_any_bytes_are_refused(path: str, body: bytes) -> None:
    assert check(path, body) in (400, 404)


@settings(max_examples=150)
@given(path=st.sampled_from(ROUTES), data=st.data())
def test_a_damaged_body_ends_in_an_answer_or_a_refusal(path: str, data: st.DataObject) -> None:
    body = bytearray(b'{"model":"alias","messages":[{"role":"user","content":"hi"}],"prompt":"hi","tokens":[1],"n":1}')
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check(path, bytes(body))


def check(path: str, body: bytes) -> int:
    answer = post(FUZZED_APP, path, body)
    if answer.status == 200:
        assert answer.body
    else:
        assert answer.status in (400, 404)
        error = msgspec.json.decode(answer.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(answer.body) < 3000
    return answer.status
