"""What is a message, and what its content becomes."""

import pytest

from roundhouse.offline.chat_prompts import text_only
from roundhouse.protocol.errors import InvalidRequest


def test_texts_stay_and_parts_are_joined() -> None:
    conversation = [
        {"role": "user", "content": "a", "name": "Ada"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"text": "c"}]},
        {"role": "assistant", "tool_calls": []},
    ]
    assert text_only("messages[0]", conversation) == [
        {"role": "user", "content": "a", "name": "Ada"},
        {"role": "user", "content": "b\nc"},
        {"role": "assistant", "tool_calls": [], "content": None},
    ]


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ([], r"m is a list of messages"),
        ("Hello", r"m is a list of messages"),
        (["Hello"], r"m\[0\] is a mapping"),
        ([{"content": "a"}], r"m\[0\] is a mapping"),
        ([{"role": "user"}], r"m\[0\] has no content"),
        ([{"role": "user", "content": 7}], r"m\[0\]: the content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"m\[0\]: the content"),
        ([{"role": "user", "content": [{"type": "text", "text": 7}]}], r"m\[0\]: the content"),
    ],
)
def test_what_is_no_message_is_named(conversation, message) -> None:
    with pytest.raises(InvalidRequest, match=message):
        text_only("m", conversation)
