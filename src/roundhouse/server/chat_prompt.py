"""Messages, checked, to the prompt's text by the model's own template.

A template comes with the model and never from a request, so what rendering may cost is bounded by what is rendered: the
body is capped, so are the messages, and a conversation far beyond the context is refused before it is rendered. A long
one is rendered in a thread, so that nobody's stream waits for it, and so is one that takes longer than it should.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec

from roundhouse.model_store.errors import ChatTemplateTooExpensive
from roundhouse.model_store.tokenizer import SPECIAL_NAMES
from roundhouse.protocol import limits
from roundhouse.protocol.errors import ContextLengthExceeded, InvalidRequest, ModelError
from roundhouse.server.decode import OBJECT, decode_field
from roundhouse.server.errors import shorten
from roundhouse.server.schema import ChatMessage, ChatPromptBody, ContentPart, ToolCall
from roundhouse.server.state import ServerState

MAX_KWARG_CHARS = 200
MAX_RENDERED_ON_LOOP_CHARS = 16 * 2**10
MAX_RENDERED_ON_LOOP_MESSAGES = 64
MAX_RENDERED_ON_LOOP_S = 0.1

_NOT_FOR_REQUESTS = frozenset(SPECIAL_NAMES) | {"raise_exception", "strftime_now", "namespace", "range", "dict"}
"""What a template reads besides its options."""


async def render_prompt(state: ServerState, body: ChatPromptBody) -> str:
    """Raises `InvalidRequest` that names the field, `ContextLengthExceeded`, or what `ChatTemplate.render` raises."""
    check_tools(body)
    given = _checked_count(body.messages)
    # The arguments of calls are parsed, which costs more than to count them.
    check_text_fits(state, sum(map(_num_argument_chars, given)), param="messages")
    messages = [checked_message(f"messages[{i}]", message) for i, message in enumerate(given)]
    tools = _checked_tools(body)
    num_chars = sum(len(message["content"]) for message in messages)
    check_text_fits(state, num_chars, param="messages")
    continues = bool(body.continue_final_message)
    prompts = body.add_generation_prompt is not False
    if continues and prompts:
        raise InvalidRequest(
            "continue_final_message needs add_generation_prompt to be false", param="continue_final_message"
        )
    kwargs = _checked_kwargs(state, body, tools)
    if body.reasoning_effort is not None:
        kwargs["reasoning_effort"] = body.reasoning_effort

    render = partial(
        state.chat_template.render,
        messages,
        tools=tools,
        add_generation_prompt=prompts,
        continue_final_message=continues,
        template_kwargs=kwargs,
    )
    try:
        if tools or num_chars > MAX_RENDERED_ON_LOOP_CHARS or len(messages) > MAX_RENDERED_ON_LOOP_MESSAGES:
            return await asyncio.to_thread(render)
        try:
            return render(max_s=MAX_RENDERED_ON_LOOP_S)
        except ChatTemplateTooExpensive:
            return await asyncio.to_thread(render)
    except ModelError as error:
        error.param = "messages"
        raise


def check_text_fits(state: ServerState, num_chars: int, *, param: str) -> None:
    """Refuses a text that no tokenizer could make fit, before time is spent on it. Raises `ContextLengthExceeded`."""
    max_model_len = state.llm.max_model_len
    if num_chars > limits.MAX_CHARS_PER_TOKEN * max_model_len:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_model_len} tokens; {num_chars} characters cannot fit",
            param=param,
        )


def check_tools(body: ChatPromptBody) -> None:
    """No call is parsed out of the model's text yet: tools may be shown to the model only when it may not call them."""
    if body.tools is not None and not body.tools:
        raise InvalidRequest("tools may not be empty; leave it out", param="tools")
    tool_choice = bytes(body.tool_choice)
    if tool_choice in (b"", b"null"):
        if body.tools:
            raise InvalidRequest("tools are not served by this server, unless tool_choice is none", param="tools")
    elif tool_choice != b'"none"':
        why = "is not served by this server, only none" if body.tools else "needs tools"
        raise InvalidRequest(f"tool_choice {why}", param="tool_choice")


def checked_message(path: str, message: ChatMessage) -> dict[str, Any]:
    """One message as templates expect it: the text as one string, the arguments of tool calls as objects."""
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"{path}.content is needed in a message of role {message.role}", param=f"{path}.content")
    # Templates know the older name of the role.
    role = "system" if message.role == "developer" else message.role
    checked: dict[str, Any] = {"role": role, "content": _joined_text(f"{path}.content", message.content)}
    if message.name is not None:
        checked["name"] = message.name
    if message.tool_calls and role == "assistant":
        calls = enumerate(message.tool_calls)
        checked["tool_calls"] = [_checked_call(f"{path}.tool_calls[{i}]", call) for i, call in calls]
    if role == "tool":
        if not message.tool_call_id:
            raise InvalidRequest(
                f"{path}.tool_call_id is needed in a message of role tool", param=f"{path}.tool_call_id"
            )
        checked["tool_call_id"] = message.tool_call_id
    return checked


def _checked_count(messages: list[ChatMessage] | None) -> list[ChatMessage]:
    if messages is None:
        raise InvalidRequest("messages is needed", param="messages")
    if not 1 <= len(messages) <= limits.MAX_MESSAGES:
        raise InvalidRequest(
            f"messages needs 1 to {limits.MAX_MESSAGES} messages, got {len(messages)}", param="messages"
        )
    return messages


def _num_argument_chars(message: ChatMessage) -> int:
    return sum(len(call.function.arguments or "") for call in message.tool_calls or ())


def _joined_text(path: str, content: str | list[ContentPart] | None) -> str:
    """Parts are joined by a line break, as in vLLM."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(f"{path} may not be an empty list", param=path)
    texts: list[str] = []
    for i, part in enumerate(content):
        if part.type != "text":
            kind = shorten(part.type)
            raise InvalidRequest(
                f"{path}[{i}]: parts of type {kind} are not served, the model reads text only",
                param=f"{path}[{i}].type",
            )
        if part.text is None:
            raise InvalidRequest(f"{path}[{i}].text is needed in a part of type text", param=f"{path}[{i}].text")
        texts.append(part.text)
    return "\n".join(texts)


def _checked_call(path: str, call: ToolCall) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        where = f"{path}.function.arguments"
        raise InvalidRequest(f"{where} must be the text of a JSON object", param=where)
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def _checked_tools(body: ChatPromptBody) -> list[dict[str, Any]] | None:
    """The tools as templates expect them, which is as they came; fields that are null are left out."""
    if body.tools is None:
        return None
    num_bytes_left = limits.MAX_TOOLS_BYTES
    tools: list[dict[str, Any]] = []
    for i, tool in enumerate(body.tools):
        param = f"tools[{i}].function.parameters"
        raw = tool.function.parameters
        parameters = decode_field(OBJECT, raw, param=param, max_bytes=num_bytes_left)
        num_bytes_left -= len(bytes(raw))
        function = {
            "name": tool.function.name,
            "description": tool.function.description,
            "parameters": parameters,
            "strict": tool.function.strict,
        }
        given = {name: value for name, value in function.items() if value is not None}
        tools.append({"type": tool.type, "function": given})
    return tools


def _checked_kwargs(state: ServerState, body: ChatPromptBody, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    kwargs = decode_field(
        OBJECT,
        body.chat_template_kwargs,
        param="chat_template_kwargs",
        max_bytes=limits.MAX_TEMPLATE_KWARGS_BYTES,
    )
    if not kwargs:
        return {}
    known = state.chat_template.variables(tools=tools) - _NOT_FOR_REQUESTS
    for name, value in kwargs.items():
        if name not in known:
            raise InvalidRequest(
                f"chat_template_kwargs: the model's chat template has no option {shorten(name)}",
                param="chat_template_kwargs",
            )
        if not isinstance(value, bool | int | float | str | None) or len(str(value)) > MAX_KWARG_CHARS:
            raise InvalidRequest(
                f"chat_template_kwargs.{name} must be a short text, a number, true or false",
                param="chat_template_kwargs",
            )
    return kwargs
