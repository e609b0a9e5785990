"""Messages as callers write them → messages as chat templates read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roundhouse.protocol.errors import InvalidRequest

Conversation = Sequence[Mapping[str, Any]]


def text_only(where: str, conversation: Conversation) -> list[dict[str, Any]]:
    """Copies whose content is one text; parts are joined by a line break, as in vLLM.

    Raises `InvalidRequest` that begins with `where` for what is no message, and for parts that are not text.
    """
    if not isinstance(conversation, Sequence) or isinstance(conversation, str) or not conversation:
        raise InvalidRequest(f"{where} is a list of messages", param="messages")
    return [_message(f"{where}[{index}]", message) for index, message in enumerate(conversation)]


def _message(where: str, message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidRequest(f"{where} is a mapping with a role and a content", param="messages")
    content = message.get("content")
    if content is None and message["role"] != "assistant":
        raise InvalidRequest(f"{where} has no content", param="messages")
    return {**message, "content": content if content is None else _joined(where, content)}


def _joined(where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    parts = list(content) if isinstance(content, Sequence) else [None]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type", "text") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{where}: the content is a text or a list of parts of type text", param="messages")
    return "\n".join(map(str, texts))
