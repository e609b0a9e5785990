"""Messages → prompt text by the model's own template, as transformers renders it, without transformers.

A template comes from the model's folder and never from a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta

from roundhouse.model_store.errors import (
    ChatTemplateError,
    ChatTemplateInvalid,
    ChatTemplateMissing,
    ChatTemplateTooExpensive,
)
from roundhouse.model_store.folder import read_json_if_any, read_text
from roundhouse.model_store.template_budget import MAX_RENDER_S, TooExpensive, render_within
from roundhouse.model_store.template_environment import new_environment
from roundhouse.model_store.tokenizer import read_special_tokens

Message = Mapping[str, Any]

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
_RENDER_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""How a template ends that was not written for the messages it is given."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    template: jinja2.Template
    variables: frozenset[str]


class ChatTemplate:
    """The templates of one model, each compiled at first use and kept. Threads may share it."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """`sources` by name, `default` being the usual one; none for a model without templates."""
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, _Compiled] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._sources))

    def variables(self, *, tools: object = None) -> frozenset[str]:
        """What the template reads besides what it is always given: the `template_kwargs` that have an effect.

        The special tokens that it reads are among them. Raises as `render` does for want of a template.
        """
        return self._compile(self._name_for(tools)).variables

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        max_s: float = MAX_RENDER_S,
    ) -> str:
        """The prompt as text; encode it without special tokens, the template writes its own.

        `messages` are plain JSON values and stay untouched; None values count as absent. Keys of `template_kwargs` that
        the template does not read are left out. Raises `ChatTemplateMissing`, `ChatTemplateInvalid`, or
        `ChatTemplateError` with the template's own words; `ChatTemplateTooExpensive` after `max_s` or when it writes
        without end.
        """
        if not messages:
            raise ChatTemplateError("there is no message")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError("continue_final_message and add_generation_prompt exclude each other")
        compiled = self._compile(self._name_for(tools))
        chat = [_normalized(message) for message in messages]
        final = _mark_final(chat) if continue_final_message else ""
        values = {
            **self._special_tokens,
            **{key: value for key, value in (template_kwargs or {}).items() if key in compiled.variables},
            "messages": chat,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = render_within(compiled.template, values, max_s)
        except TooExpensive as error:
            raise ChatTemplateTooExpensive(f"the model's chat template does not end: {error}") from None
        except _RENDER_ERRORS as error:
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error
        return _cut_at_mark(text, final) if continue_final_message else text

    def _name_for(self, tools: object) -> str:
        if not self._sources:
            raise ChatTemplateMissing("the model has no chat template: ask it for completions, or serve a chat model")
        if tools is not None and "tool_use" in self._sources:
            return "tool_use"
        if "default" not in self._sources:
            raise ChatTemplateMissing(f"the model has no default chat template, only {', '.join(self.names)}")
        return "default"

    def _compile(self, name: str) -> _Compiled:
        if name not in self._compiled:
            environment = new_environment()
            try:
                tree = environment.parse(self._sources[name])
                variables = frozenset(jinja2.meta.find_undeclared_variables(tree)) - _OWN_VARIABLES
                template = environment.from_string(self._sources[name])
            except (jinja2.TemplateError, RecursionError) as error:
                raise ChatTemplateInvalid(f"the model's chat template does not compile: {error}") from error
            self._compiled[name] = _Compiled(template, variables)
        return self._compiled[name]


def load_chat_template(folder: Path) -> ChatTemplate:
    """Files win over tokenizer_config.json. No template is no error here: a base model serves completions.

    Raises `ModelFolderInvalid` for a file that is no text.
    """
    sources = {file.stem: read_text(file) for file in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").exists():
        sources["default"] = read_text(folder / "chat_template.jinja")
    if not sources:
        sources = _from_config(read_json_if_any(folder / "tokenizer_config.json").get("chat_template"))
    return ChatTemplate(sources, read_special_tokens(folder))


def _from_config(value: object) -> dict[str, str]:
    """One template, or a list of {name, template}."""
    if isinstance(value, str):
        return {"default": value}
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    return {str(entry["name"]): str(entry["template"]) for entry in entries if "name" in entry and "template" in entry}


def _normalized(message: Message) -> dict[str, Any]:
    """A copy without None values, with reasoning under each of the names that templates read it by."""
    copy = {key: value for key, value in message.items() if value is not None}
    reasoning = next((copy[name] for name in _REASONING_FIELDS if name in copy), None)
    if reasoning is None:
        return copy
    return {"thinking": reasoning, **copy, "reasoning_content": reasoning}


def _mark_final(chat: list[dict[str, Any]]) -> str:
    """Puts a mark behind the last message's text, which it returns, to cut off what the template writes after it."""
    content = chat[-1].get("content")
    if isinstance(content, str):
        chat[-1]["content"] = content + _MARK
        return content
    blocks = [dict(block) for block in content] if isinstance(content, list) else []
    for block in reversed(blocks):
        if isinstance(text := block.get("text"), str):
            block["text"] = text + _MARK
            chat[-1]["content"] = blocks
            return text
    raise ChatTemplateError("continue_final_message needs a last message with text")


def _cut_at_mark(text: str, final: str) -> str:
    """Templates that strip a message strip the mark's space as well; then the text before it is stripped too."""
    mark = _MARK.strip()
    if final.strip() not in text or mark not in text:
        raise ChatTemplateError("continue_final_message: the model's chat template drops or changes the last message")
    at = text.rindex(mark)
    return text[:at] if text[at : at + len(_MARK)] == _MARK else text[:at].rstrip()
