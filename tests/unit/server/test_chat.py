"""What POST /v1/chat/completions makes of a body. Numbers are those of the public cases that a row comes from."""

import json
from typing import Any

import pytest

from roundhouse.frontend.outputs import RequestOutputKind
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.app import build_app
from tests.support.asgi import Answer, post
from tests.support.scripted_llm import CREATED, MODEL, SETTINGS, Call, ScriptedLLM, server_state, spell

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def ask(body: Any, **headers: str) -> tuple[Answer, ScriptedLLM]:
    llm = ScriptedLLM(spell("Hello"))
    return post(build_app(server_state(llm), SETTINGS), PATH, body, headers), llm


def prompt_of(body: dict[str, Any]) -> str:
    answer, llm = ask(body)
    assert answer.status == 200, answer.body
    return llm.calls[0].prompt["prompt"]


def test_an_answer() -> None:
    answer, llm = ask({"messages": HI, "request_id": "r1"})
    assert (answer.status, answer.headers["x-request-id"], answer.json) == (
        200,
        "r1",
        {
            "id": "chatcmpl-r1",
            "object": "chat.completion",
            "created": CREATED,
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hello", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ],
            "usage": {
                "prompt_tokens": 19,
                "completion_tokens": 5,
                "total_tokens": 24,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
            "service_tier": None,
            "system_fingerprint": None,
        },
    )
    (call,) = llm.calls
    assert call == Call(
        prompt={"prompt": "[user]hi[assistant]"},
        params=SamplingParams(max_tokens=None),
        request_id=call.request_id,
        output_kind=RequestOutputKind.FINAL_ONLY,
        options={"tokenization_kwargs": {"add_special_tokens": False}, "priority": 0},
    )


def test_one_id_for_two_requests_is_two_ids_inside_case_41() -> None:
    llm = ScriptedLLM(spell("Hello"))
    app = build_app(server_state(llm), SETTINGS)
    answers = [post(app, PATH, {"messages": HI}, {"x-request-id": "same"}) for _ in range(2)]
    assert [answer.json["id"] for answer in answers] == ["chatcmpl-same"] * 2
    first, second = (call.request_id for call in llm.calls)
    assert first != second
    assert {request_id.rpartition("-")[0] for request_id in (first, second)} == {"chatcmpl-same"}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"max_tokens": None}),
        ({"max_tokens": 3}, {"max_tokens": 3}),
        ({"max_tokens": 3, "max_completion_tokens": 4}, {"max_tokens": 4}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
        ({"logprobs": False, "top_logprobs": None}, {"logprobs": None}),
        ({"stop": ["a", "b"], "temperature": 0}, {"stop": ["a", "b"], "temperature": 0.0}),
    ],
)
def test_fields_become_sampling_params(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    answer, llm = ask({"messages": HI, **fields})
    assert (answer.status, llm.calls[0].params) == (200, SamplingParams(**({"max_tokens": None} | expected)))


def test_what_stands_beside_the_sampling_reaches_the_llm() -> None:
    _, llm = ask({"messages": HI, "priority": -2, "cache_salt": "tenant", "add_special_tokens": True})
    assert llm.calls[0].prompt == {"prompt": "[user]hi[assistant]", "cache_salt": "tenant"}
    assert llm.calls[0].options == {"tokenization_kwargs": {"add_special_tokens": True}, "priority": -2}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        pytest.param({"messages": [{"role": "developer", "content": "d"}]}, "[system]d[assistant]", id="developer"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            "[user]a\nb[assistant]",
            id="parts are joined, case 31",
        ),
        pytest.param(
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [
                            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c", "content": "4"},
                ]
            },
            "[assistant][tool]4[assistant]",
            id="null of an assistant, case 31",
        ),
        pytest.param({"messages": HI, "add_generation_prompt": False}, "[user]hi", id="no generation prompt"),
        pytest.param(
            {
                "messages": [*HI, {"role": "assistant", "content": "So"}],
                "add_generation_prompt": False,
                "continue_final_message": True,
            },
            "[user]hi[assistant]So",
            id="continue",
        ),
        pytest.param(
            {"messages": HI, "chat_template_kwargs": {"shout": True}},
            "![user]hi[assistant]",
            id="an option of the template",
        ),
        pytest.param({"messages": HI, "reasoning_effort": "low"}, "[user]hi[assistant]", id="an option it lacks"),
        pytest.param(
            {
                "messages": HI,
                "tool_choice": "none",
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            },
            "[user]hi[assistant]",
            id="tools that may not be called",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": "hi", "name": "x"}]}, "[user]hi[assistant]", id="a name"
        ),
        pytest.param(
            {"messages": HI, "response_format": {"type": "text"}, "user": "u"}, "[user]hi[assistant]", id="off"
        ),
    ],
)
def test_messages_become_a_prompt(fields: dict[str, Any], prompt: str) -> None:
    assert prompt_of(fields) == prompt


def test_a_long_conversation_is_rendered_off_the_loop_to_the_same_text() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 100
    answer, llm = ask({"messages": messages})
    assert answer.json["error"]["code"] == "context_length_exceeded"
    assert llm.calls[0].prompt["prompt"] == "[user]a[assistant]b" * 100 + "[assistant]"


TOOLS = [{"type": "function", "function": {"name": "f"}}]
PART = {"type": "text", "text": ""}
HALF = {"a": "x" * 2**17}
REFUSED: list[tuple[str, dict[str, Any], str | None]] = [
    ("no messages", {}, "messages"),
    ("messages null", {"messages": None}, "messages"),
    ("messages empty", {"messages": []}, "messages"),
    ("messages a text", {"messages": "hi"}, "messages"),
    ("messages of texts", {"messages": ["hi"]}, "messages[0]"),
    ("too many messages", {"messages": HI * 4097}, "messages"),
    ("role unknown", {"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    ("role missing", {"messages": [{"content": "a"}]}, "messages[0].role"),
    ("role null", {"messages": [{"role": None, "content": "a"}]}, "messages[0].role"),
    ("31: content empty list", {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ("31: content a number", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("31: content null of a user", {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ("content missing", {"messages": [{"role": "system"}]}, "messages[0].content"),
    (
        "31: an image",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]},
        "messages[0].content[0].type",
    ),
    (
        "a part without text",
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    ("31: tool without id", {"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
    (
        "arguments that are no JSON",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ("the template refuses", {"messages": [{"role": "user", "content": "refuse"}]}, "messages"),
    ("too long", {"messages": [{"role": "user", "content": "a" * 600}]}, "messages"),
    ("far too long", {"messages": [{"role": "user", "content": "a" * 100_000}]}, "messages"),
    ("n 0", {"n": 0}, "n"),
    ("25: n -1", {"n": -1}, "n"),
    ("25: n 10**9", {"n": 10**9}, "n"),
    ("n 10**30", {"n": 10**30}, "n"),
    ("25: n 2 with temperature 0", {"n": 2, "temperature": 0}, "n"),
    ("21: temperature 1e9", {"temperature": 1e9}, "temperature"),
    ("21: temperature -1", {"temperature": -1}, "temperature"),
    ("21: temperature a text", {"temperature": "0.5"}, "temperature"),
    ("21: temperature true", {"temperature": True}, "temperature"),
    ("temperature a list", {"temperature": [1]}, "temperature"),
    ("temperature 10**400", {"temperature": 10**400}, "temperature"),
    ("top_p 0", {"top_p": 0}, "top_p"),
    ("top_p 1.1", {"top_p": 1.1}, "top_p"),
    ("top_k -2", {"top_k": -2}, "top_k"),
    ("min_p 2", {"min_p": 2}, "min_p"),
    ("presence_penalty 3", {"presence_penalty": 3}, "presence_penalty"),
    ("frequency_penalty -3", {"frequency_penalty": -3}, "frequency_penalty"),
    ("repetition_penalty 0", {"repetition_penalty": 0}, "repetition_penalty"),
    ("seed 2**64", {"seed": 2**64}, "seed"),
    ("seed a float", {"seed": 1.5}, "seed"),
    ("max_tokens 0", {"max_tokens": 0}, "max_tokens"),
    ("max_tokens a text", {"max_tokens": "5"}, "max_tokens"),
    ("max_completion_tokens 0", {"max_completion_tokens": 0}, "max_completion_tokens"),
    ("min_tokens over max_tokens", {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ("min_tokens -1", {"min_tokens": -1}, "min_tokens"),
    ("stop empty", {"stop": ""}, "stop"),
    ("stop with an empty one", {"stop": ["a", ""]}, "stop"),
    ("5 stops", {"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ("stop a number", {"stop": 5}, "stop"),
    ("stop of numbers", {"stop": [5]}, "stop[0]"),
    ("a huge stop", {"stop": "a" * 2000}, "stop"),
    ("stop_token_ids out of vocabulary", {"stop_token_ids": [256]}, "stop_token_ids"),
    ("allowed_token_ids empty", {"allowed_token_ids": []}, "allowed_token_ids"),
    ("17: logit_bias out of vocabulary", {"logit_bias": {"256": 100}}, "logit_bias"),
    ("logit_bias no id", {"logit_bias": {"a": 1}}, "logit_bias"),
    ("logit_bias a list", {"logit_bias": [1]}, "logit_bias"),
    ("logprobs a number", {"logprobs": 5}, "logprobs"),
    ("top_logprobs without logprobs", {"top_logprobs": 2}, "top_logprobs"),
    ("top_logprobs 21", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("top_logprobs -1", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ("stream_options without stream", {"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
    ("stream a text", {"stream": "yes"}, "stream"),
    ("stream_options a list", {"stream": True, "stream_options": []}, "stream_options"),
    (
        "include_usage a number",
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
    ),
    ("tools empty", {"tools": []}, "tools"),
    ("tools that may be called", {"tools": TOOLS}, "tools"),
    ("tool_choice auto", {"tools": TOOLS, "tool_choice": "auto"}, "tool_choice"),
    ("tool_choice required", {"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    (
        "tool_choice named",
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
    ),
    ("tool_choice without tools", {"tool_choice": "auto"}, "tool_choice"),
    ("a tool of another type", {"tools": [{"type": "mcp", "function": {"name": "f"}}]}, "tools[0].type"),
    ("response_format of no known type", {"response_format": {"type": "xml"}}, "response_format.type"),
    ("guided_regex and guided_choice", {"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ("structural_tag", {"structural_tag": {}}, "structural_tag"),
    ("chat_template", {"chat_template": "{{ messages }}"}, "chat_template"),
    ("a kwarg the template lacks", {"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs"),
    ("a template in the kwargs", {"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
    ("a function of the template", {"chat_template_kwargs": {"raise_exception": 1}}, "chat_template_kwargs"),
    ("a special token", {"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
    ("a kwarg that is an object", {"chat_template_kwargs": {"shout": {}}}, "chat_template_kwargs"),
    ("a long kwarg", {"chat_template_kwargs": {"shout": "x" * 201}}, "chat_template_kwargs"),
    ("continue and prompt", {"continue_final_message": True}, "continue_final_message"),
    ("echo", {"echo": True}, "echo"),
    ("cache_salt with a slash", {"cache_salt": "a/b"}, "cache_salt"),
    ("priority 2**70", {"priority": 2**70}, "priority"),
    ("request_id too long", {"request_id": "x" * 129}, "request_id"),
    ("request_id not ASCII", {"request_id": "é"}, "request_id"),
    ("request_id with a line break", {"request_id": "a\r\nb"}, "request_id"),
    ("request_id empty", {"request_id": ""}, "request_id"),
    ("model a number", {"model": 5}, "model"),
    ("user a number", {"user": 5}, "user"),
    ("129 tools", {"tools": TOOLS * 129, "tool_choice": "none"}, "tools"),
    (
        "parameters of a tool a list",
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}], "tool_choice": "none"},
        "tools[0].function.parameters",
    ),
    (
        "tools too large together",
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": HALF}}] * 2, "tool_choice": "none"},
        "tools[1].function.parameters",
    ),
    ("kwargs a list", {"chat_template_kwargs": []}, "chat_template_kwargs"),
    ("kwargs too large", {"chat_template_kwargs": {"shout": [0] * 2**16}}, "chat_template_kwargs"),
    ("1025 parts", {"messages": [{"role": "user", "content": [PART] * 1025}]}, "messages[0].content"),
    (
        "129 tool calls",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 129}]},
        "messages[0].tool_calls",
    ),
    (
        "arguments that fit no context",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 20_000}}]}]},
        "messages",
    ),
    ("a large unserved field", {"structural_tag": [[]] * 1000}, "structural_tag"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("fields", "param"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_bad_bodies_are_refused_with_the_field(fields: dict[str, Any], param: str | None, stream: bool) -> None:
    needs_messages = "messages" not in fields and param != "messages"
    body = ({"messages": HI} if needs_messages else {}) | ({"stream": True} if stream else {}) | fields
    # json and not msgspec: it writes numbers of any size.
    answer, _ = ask(json.dumps(body).encode())
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    assert (answer.status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert isinstance(error["code"], str)
    assert 0 < len(error["message"]) < 500
    assert len(answer.headers["x-request-id"]) > 0


def test_messages_name_the_length_as_clients_look_for_it() -> None:
    answer, _ = ask({"messages": [{"role": "user", "content": "a" * 600}]})
    assert "maximum context length is 512 tokens" in answer.json["error"]["message"]


def test_too_many_answer_tokens_are_named_as_the_client_named_them() -> None:
    from roundhouse.protocol.errors import ContextLengthExceeded

    llm = ScriptedLLM(lambda call: [ContextLengthExceeded("too many", param="max_tokens")])
    app = build_app(server_state(llm), SETTINGS)
    for field in ("max_tokens", "max_completion_tokens"):
        answer = post(app, PATH, {"messages": HI, field: 10_000})
        assert (answer.status, answer.json["error"]["param"]) == (400, field)


def test_an_unknown_model_is_not_found() -> None:
    answer, llm = ask({"messages": HI, "model": "gpt-5"})
    assert (answer.status, answer.json) == (
        404,
        {
            "error": {
                "message": "The model 'gpt-5' does not exist; see GET /v1/models",
                "type": "NotFoundError",
                "param": "model",
                "code": "model_not_found",
            }
        },
    )
    assert llm.calls == []


def test_the_answer_has_the_name_that_was_asked_for() -> None:
    assert ask({"messages": HI, "model": "alias"})[0].json["model"] == "alias"
