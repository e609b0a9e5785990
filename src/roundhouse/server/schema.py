"""Bodies of requests as they come: types are checked, values are not; `chat` and `completions` do that.

Everything may be null and then means its default, as OpenAI has it. Fields that are not here are ignored, unless
`unserved` names them. What a client may nest as it likes stays JSON until somebody needs it (`Raw`, empty when it is
not there), and structs of which a body may hold many are none of the garbage collector's business. Names and meanings:
OpenAI's; those marked + are vLLM's.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from roundhouse.protocol import limits

RawObject: TypeAlias = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
RawSchema: TypeAlias = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["object", "string"]})]
RawToolChoice: TypeAlias = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": ["string", "object"]})]
RawPrompt: TypeAlias = Annotated[
    msgspec.Raw,
    Meta(
        extra_json_schema={
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"type": "string"}},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
            ]
        }
    ),
]
Role = Literal["system", "developer", "user", "assistant", "tool"]


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # +


class GenerationBody(msgspec.Struct, kw_only=True):
    """What both generating routes understand."""

    model: str | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    max_tokens: int | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    user: str | None = None
    top_p: float | None = None
    top_k: int | None = None  # + and all below
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    priority: int | None = None
    request_id: str | None = None
    cache_salt: str | None = None
    response_format: RawObject = msgspec.field(default_factory=msgspec.Raw)
    structured_outputs: RawObject = msgspec.field(default_factory=msgspec.Raw)  # + and its older names
    guided_json: RawSchema = msgspec.field(default_factory=msgspec.Raw)
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """POST /v1/completions. `prompt` is a text, token ids, or a list of either."""

    prompt: RawPrompt
    echo: bool | None = None
    logprobs: int | None = None


class ContentPart(msgspec.Struct, kw_only=True, gc=False):
    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct, kw_only=True, gc=False):
    name: str
    arguments: str | None = None


class ToolCall(msgspec.Struct, kw_only=True, gc=False):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True, gc=False):
    role: Role
    content: str | Annotated[list[ContentPart], Meta(max_length=limits.MAX_CONTENT_PARTS)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=limits.MAX_TOOL_CALLS)] | None = None
    tool_call_id: str | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True, gc=False):
    name: str
    description: str | None = None
    parameters: RawObject = msgspec.field(default_factory=msgspec.Raw)
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, gc=False):
    type: Literal["function"]
    function: FunctionDefinition


class ChatCompletionBody(GenerationBody, kw_only=True):
    """POST /v1/chat/completions. `max_completion_tokens` wins over `max_tokens`."""

    messages: list[ChatMessage] | None = None
    tools: Annotated[list[Tool], Meta(max_length=limits.MAX_TOOLS)] | None = None
    tool_choice: RawToolChoice = msgspec.field(default_factory=msgspec.Raw)
    add_generation_prompt: bool | None = None  # +
    continue_final_message: bool | None = None  # +
    chat_template_kwargs: RawObject = msgspec.field(default_factory=msgspec.Raw)  # +
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """POST /tokenize: a text, or messages with what the chat route reads to make a prompt of them."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: list[ChatMessage] | None = None
    tools: Annotated[list[Tool], Meta(max_length=limits.MAX_TOOLS)] | None = None
    tool_choice: RawToolChoice = msgspec.field(default_factory=msgspec.Raw)
    add_generation_prompt: bool | None = None  # +
    continue_final_message: bool | None = None  # +
    chat_template_kwargs: RawObject = msgspec.field(default_factory=msgspec.Raw)  # +
    reasoning_effort: str | None = None


ChatPromptBody: TypeAlias = ChatCompletionBody | TokenizeBody
"""What has messages and how the model's template makes a prompt of them."""


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None
