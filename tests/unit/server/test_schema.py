from __future__ import annotations

import msgspec

from roundhouse.server.schema import ChatCompletionBody, CompletionBody


def raw_fields(struct: type) -> set[str]:
    """Fields whose values are kept as bytes until somebody needs them."""
    return {
        name
        for name, kind in ((field.name, field.type) for field in msgspec.structs.fields(struct))
        if kind is msgspec.Raw or msgspec.Raw in getattr(kind, "__args__", ())
    }


def test_what_a_client_can_make_huge_is_not_made_before_it_is_needed() -> None:
    assert raw_fields(ChatCompletionBody) >= {"chat_template_kwargs", "tool_choice"}
    assert "prompt" in raw_fields(CompletionBody)
