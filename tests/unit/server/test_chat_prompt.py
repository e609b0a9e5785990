"""Messages to the text of a prompt; `test_chat` has the bodies that the route refuses."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from roundhouse.model_store.chat_template import ChatTemplate
from roundhouse.model_store.errors import ChatTemplateError, ChatTemplateTooExpensive
from roundhouse.protocol import limits
from roundhouse.protocol.errors import ContextLengthExceeded, InvalidRequest
from roundhouse.server.chat_prompt import (
    MAX_RENDERED_ON_LOOP_CHARS,
    MAX_RENDERED_ON_LOOP_MESSAGES,
    MAX_RENDERED_ON_LOOP_S,
    check_text_fits,
    check_tools,
    checked_message,
    render_prompt,
)
from roundhouse.server.schema import ChatCompletionBody, ChatMessage
from tests.support.scripted_llm import MAX_MODEL_LEN, ScriptedLLM, server_state, spell

TOOL = {"type": "function", "function": {"name": "f"}}


def message(**fields: Any) -> ChatMessage:
    return msgspec.json.decode(msgspec.json.encode(fields), type=ChatMessage)


def body(*contents: str, **fields: Any) -> ChatCompletionBody:
    messages = [{"role": "user", "content": content} for content in contents]
    return msgspec.json.decode(msgspec.json.encode({"messages": messages} | fields), type=ChatCompletionBody)


def render(request: ChatCompletionBody, template: str | None = None) -> str:
    changes = {} if template is None else {"chat_template": ChatTemplate({"default": template}, {"bos_token": "<s>"})}
    return asyncio.run(render_prompt(server_state(ScriptedLLM(spell("a")), **changes), request))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
        ({"role": "developer", "content": "hi"}, {"role": "system", "content": "hi"}),
        (
            {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb", "name": "Ann"},
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": '{"x": [1]}'}}],
            },
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}],
            },
        ),
        (
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
        ),
    ],
    ids=["text", "developer", "parts and name", "tool call", "tool result"],
)
def test_a_message_as_templates_expect_it(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert checked_message("messages[0]", message(**given)) == expected


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"role": "user"}, "m.content"),
        ({"role": "user", "content": []}, "m.content"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}, "m.content[1].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "m.content[0].text"),
        ({"role": "tool", "content": "3"}, "m.tool_call_id"),
        *(
            (
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
                "m.tool_calls[0].function.arguments",
            )
            for arguments in ("{", "[1]", "null", "[" * 10_000)
        ),
    ],
)
def test_a_bad_message_is_refused_by_the_place_of_its_fault(given: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        checked_message("m", message(**given))
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, None),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tool_choice": "none"}, None),
        ({"tools": []}, "tools"),
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
    ],
)
def test_tools_may_be_shown_but_not_called(fields: dict[str, Any], param: str | None) -> None:
    if param is None:
        check_tools(body("hi", **fields))
        return
    with pytest.raises(InvalidRequest) as raised:
        check_tools(body("hi", **fields))
    assert raised.value.param == param


def test_a_text_is_refused_from_the_first_character_that_no_tokenizer_makes_fit() -> None:
    state = server_state(ScriptedLLM(spell("a")))
    most = limits.MAX_CHARS_PER_TOKEN * MAX_MODEL_LEN
    check_text_fits(state, most, param="prompt")
    with pytest.raises(ContextLengthExceeded) as raised:
        check_text_fits(state, most + 1, param="prompt")
    assert raised.value.param == "prompt"


def test_what_the_template_is_given() -> None:
    template = (
        "{{ bos_token }}{{ messages | length }}{{ messages[-1].content }}"
        "|{{ tools | tojson }}|{{ add_generation_prompt }}|{{ reasoning_effort }}|{{ shout }}"
    )
    request = body(
        *("a", "b"),
        tools=[TOOL],
        tool_choice="none",
        add_generation_prompt=False,
        reasoning_effort="low",
        chat_template_kwargs={"shout": True},
    )
    tools = '[{"type": "function", "function": {"name": "f"}}]'
    assert render(request, template) == f"<s>2b|{tools}|False|low|True"


def test_a_final_message_is_continued_where_it_ends() -> None:
    request = body("hi", add_generation_prompt=False, continue_final_message=True)
    assert render(request, "{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}") == "[user]hi"


@pytest.mark.parametrize(
    ("contents", "is_on_loop"),
    [
        (["a" * MAX_RENDERED_ON_LOOP_CHARS], True),
        (["a" * MAX_RENDERED_ON_LOOP_CHARS, "a"], False),
        (["a"] * MAX_RENDERED_ON_LOOP_MESSAGES, True),
        (["a"] * (MAX_RENDERED_ON_LOOP_MESSAGES + 1), False),
    ],
    ids=["short", "long", "few", "many"],
)
def test_a_long_conversation_is_rendered_in_a_thread(contents: list[str], is_on_loop: bool) -> None:
    threads: list[threading.Thread] = []

    class LongContext(ScriptedLLM):
        max_model_len = MAX_RENDERED_ON_LOOP_CHARS

    class Template(ChatTemplate):
        def render(self, *args: Any, **kwargs: Any) -> str:
            threads.append(threading.current_thread())
            return super().render(*args, **kwargs)

    template = Template({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}, {})
    state = server_state(LongContext(spell("a")), chat_template=template)
    assert asyncio.run(render_prompt(state, body(*contents))) == "".join(contents)
    assert [thread is threading.current_thread() for thread in threads] == [is_on_loop]


def test_a_template_that_does_not_end_holds_up_nobody_and_is_an_error_of_the_request() -> None:
    threads: list[tuple[bool, float]] = []

    class Template(ChatTemplate):
        def render(self, *args: Any, max_s: float = 0.2, **kwargs: Any) -> str:
            threads.append((threading.current_thread() is threading.main_thread(), max_s))
            return super().render(*args, max_s=max_s, **kwargs)

    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    state = server_state(ScriptedLLM(spell("a")), chat_template=Template({"default": endless}, {}))
    with pytest.raises(ChatTemplateTooExpensive) as raised:
        asyncio.run(render_prompt(state, body("hi")))
    assert (raised.value.param, raised.value.http_status) == ("messages", 400)
    assert threads == [(True, MAX_RENDERED_ON_LOOP_S), (False, 0.2)]


def test_what_the_template_refuses_is_the_messages_fault() -> None:
    with pytest.raises(ChatTemplateError, match="no refusing") as raised:
        render(body("refuse"))
    assert raised.value.param == "messages"
