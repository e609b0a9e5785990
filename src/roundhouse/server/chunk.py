"""Bytes of server-sent events. What is constant in a stream is encoded once; a token costs its own text and two joins.

Measured a chunk: pydantic 5.6 µs, json.dumps 3.6 µs, a msgspec struct 0.54 µs, a template with escaped text 0.12 µs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from roundhouse.server.generation import Generation

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode
_SEPARATORS = {"\x85": b"\\u0085", "\u2028": b"\\u2028", "\u2029": b"\\u2029"}


def encode_text(text: str) -> bytes:
    """`text` as a JSON string without any character at which a client's `splitlines` would cut the event in two."""
    encoded = _encode(text)
    return encoded if text.isascii() else escape_separators(encoded)


def escape_separators(encoded: bytes) -> bytes:
    for separator, escaped in _SEPARATORS.items():
        encoded = encoded.replace(separator.encode(), escaped)
    return encoded


class ChunkTemplate:
    """`head` and `tail` around the choices of one chunk: `head + choice + tail` is a whole event."""

    __slots__ = ("head", "tail")

    def __init__(self, generation: Generation, object_name: str) -> None:
        constants = {
            "id": generation.response_id,
            "object": object_name,
            "created": generation.created,
            "model": generation.model,
        }
        self.head = b"data: " + escape_separators(_encode(constants))[:-1] + b',"choices":['
        self.tail = b'],"usage":null}\n\n' if generation.include_usage else b"]}\n\n"

    def event(self, choice: dict[str, Any], usage: dict[str, Any] | None = None, **extra: Any) -> bytes:
        """A chunk with anything in it; `extra` stands beside the choices."""
        tail = self.tail if usage is None else b'],"usage":' + _encode(usage) + b"}\n\n"
        if extra:
            tail = b"]," + _encode(extra)[1:-1] + tail[1:]
        return self.head + escape_separators(_encode(choice)) + tail

    def usage_event(self, usage: dict[str, Any]) -> bytes:
        """The chunk without choices that ends a stream with `include_usage`."""
        return self.head + b'],"usage":' + _encode(usage) + b"}\n\n"
