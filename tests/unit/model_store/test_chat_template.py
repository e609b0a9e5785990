from pathlib import Path
from typing import Any

import pytest

from roundhouse.model_store.chat_template import ChatTemplate, load_chat_template
from roundhouse.model_store.errors import (
    ChatTemplateError,
    ChatTemplateInvalid,
    ChatTemplateMissing,
    ModelFolderInvalid,
)
from tests.unit.model_store import tiny

CHATML = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
HI = [{"role": "user", "content": "hi"}]


def one(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"bos_token": "^"})


def test_messages_special_tokens_and_the_turn_to_be_written() -> None:
    assert one(CHATML).render(HI) == "^<user>hi</user>"
    assert one(CHATML).render(HI, add_generation_prompt=True) == "^<user>hi</user><assistant>"


def test_only_variables_that_the_template_reads_reach_it() -> None:
    template = one("{% set t = think if think is defined else 'no' %}{{ t }}{{ messages[0].content }}{{ tools }}")
    assert template.variables() == {"think"}
    assert template.render(HI) == "nohiNone"
    assert (
        template.render(HI, template_kwargs={"think": "yes", "messages": [], "tools": [1], "other": 1}) == "yeshiNone"
    )


def test_tools_and_documents_are_given_as_they_are() -> None:
    template = one("{{ tools | tojson }}{{ documents | tojson }}")
    assert template.render(HI, tools=[{"a": 1}], documents=[{"b": 2}]) == '[{"a": 1}][{"b": 2}]'


def test_none_is_absent_and_messages_stay_untouched() -> None:
    messages = [{"role": "user", "content": "hi", "name": None}]
    template = one("{{ 'name' in messages[0] }}")
    assert template.render(messages) == "False"
    assert one(CHATML).render([{"role": "assistant", "content": "x"}], continue_final_message=True) == "^<assistant>x"
    assert messages == [{"role": "user", "content": "hi", "name": None}]


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_each_of_its_names(name: str) -> None:
    template = one("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}")
    assert template.render([{"role": "assistant", "content": "", name: "hm"}]) == "hmhm"


def test_a_template_for_tools_is_taken_when_there_are_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ x }}tools"}, {})
    assert template.names == ("default", "tool_use")
    assert template.render(HI) == "plain"
    assert template.render(HI, tools=[]) == "tools"
    assert template.variables() == frozenset()
    assert template.variables(tools=[]) == {"x"}


def test_a_model_without_a_template() -> None:
    with pytest.raises(ChatTemplateMissing, match="the model has no chat template"):
        ChatTemplate({}, {}).render(HI)
    with pytest.raises(ChatTemplateMissing, match="the model has no chat template"):
        ChatTemplate({}, {}).variables()
    with pytest.raises(ChatTemplateMissing, match="no default chat template, only rag, tool_use"):
        ChatTemplate({"tool_use": "", "rag": ""}, {}).render(HI)


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(ChatTemplateInvalid, match=r"does not compile: .*endfor"):
        one("{% for m in messages %}").render(HI)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[7].content.x }}", "list object has no element 7"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_template_that_refuses_is_the_requests_error(source: str, complaint: str) -> None:
    with pytest.raises(ChatTemplateError, match=complaint):
        one(source).render(HI)


def test_no_message_is_no_chat() -> None:
    with pytest.raises(ChatTemplateError, match="there is no message"):
        one(CHATML).render([])


def continued(source: str, content: Any) -> str:
    messages = [*HI, {"role": "assistant", "content": content}]
    return one(source).render(messages, continue_final_message=True)


def test_the_last_message_can_be_left_open() -> None:
    assert continued(CHATML, "so far") == "^<user>hi</user><assistant>so far"
    assert continued(CHATML, "so far ") == "^<user>hi</user><assistant>so far "
    assert continued(CHATML.replace("m.content", "m.content | trim"), "so far ") == "^<user>hi</user><assistant>so far"


def test_the_last_text_block_can_be_left_open() -> None:
    source = "{% for m in messages %}{% for b in m.content %}{{ b.text }};{% endfor %}{% endfor %}"
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]
    assert continued(source, blocks) == ";;a;b"
    assert blocks[1] == {"type": "text", "text": "b"}


def test_what_cannot_be_left_open_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match="exclude each other"):
        one(CHATML).render(HI, add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(ChatTemplateError, match="needs a last message with text"):
        continued(CHATML, None)
    with pytest.raises(ChatTemplateError, match="drops or changes the last message"):
        continued("{{ messages[0].content }}", "so far")


def test_templates_are_found_where_models_keep_them(tmp_path: Path) -> None:
    tiny.write_json(tmp_path / "tokenizer_config.json", {"chat_template": "{{ bos_token }}config", "bos_token": "^"})
    assert load_chat_template(tmp_path).render(HI) == "^config"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_chat_template(tmp_path).render(HI) == "file"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load_chat_template(tmp_path).names == ("default", "tool_use")


def test_named_templates_in_the_config(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}, {"name": "broken"}, 1]
    tiny.write_json(tmp_path / "tokenizer_config.json", {"chat_template": templates})
    assert load_chat_template(tmp_path).names == ("default", "rag")


def test_a_base_model_has_none(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path).names == ()


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff{{ x }}")
    with pytest.raises(ModelFolderInvalid, match="is not a text in UTF-8"):
        load_chat_template(tmp_path)
