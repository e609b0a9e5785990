"""JSON bytes to a struct of `schema`, strictly: no coercion, no NaN, no lone surrogate, no number that JSON peers lose.

msgspec stops at the first fault, so that a body of a million faults costs one. Its message names the place of a wrong
value (`$.messages[0].content`) but not of malformed text: for bodies of a usual size a second look finds the field.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

import msgspec

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.server.errors import shorten

T = TypeVar("T")
OBJECT: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])

MAX_SECOND_LOOK_BYTES = 64 * 2**10

_PLACE = re.compile(r" - at (?:`(?:key|value)` in )?`\$(?P<path>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>\w+)`")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Raises `InvalidRequest`; `param` is the field at fault, as `messages[0].content`, where there is one."""
    if not body:
        raise InvalidRequest("The request body is empty; a JSON object is needed")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _wrong_value(str(error)) from None
    except RecursionError:
        raise InvalidRequest("The JSON body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _malformed(body, str(error)) from None


def decode_field(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw, *, param: str, max_bytes: int) -> T | None:
    """The value of a field that was left as it came; None when it is null or was not there.

    Raises `InvalidRequest` that names `param` or a place in it; more than `max_bytes` are refused unread.
    """
    text = bytes(raw)
    if not text or text == b"null":
        return None
    if len(text) > max_bytes:
        raise InvalidRequest(f"{param} is larger than {max_bytes} bytes", param=param)
    try:
        return decode(decoder, text)
    except InvalidRequest as error:
        inside = error.param or ""
        place = param + inside if inside.startswith("[") or not inside else f"{param}.{inside}"
        raise InvalidRequest(f"{place}: {error.message.removeprefix(f'{inside}: ')}", param=place) from None


def _wrong_value(text: str) -> InvalidRequest:
    place = _PLACE.search(text)
    message = text[: place.start()] if place else text
    param = place["path"].lstrip(".").replace("[...]", "") if place else ""
    if missing := _MISSING.search(message):
        param = f"{param}.{missing['field']}".lstrip(".")
    message = shorten(message.replace(" | null`", "`"))
    return InvalidRequest(f"{param}: {message}" if param else message, param=shorten(param) or None)


def _malformed(body: bytes, text: str) -> InvalidRequest:
    field = _unspeakable_field(body) if len(body) <= MAX_SECOND_LOOK_BYTES else None
    if field is not None:
        path, what = field
        return InvalidRequest(f"{path}: {what}" if path else what, param=shorten(path) or None)
    return InvalidRequest(f"The body is not valid JSON: {shorten(text)}")


def _unspeakable_field(body: bytes) -> tuple[str, str] | None:
    """Where a body that only a lenient parser reads holds what JSON has no word for: (path, what it is)."""
    try:
        value = json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str) and not _is_unicode(value):
            return path, "the text holds half of a surrogate pair, which is no character"
        if isinstance(value, float) and not math.isfinite(value):
            return path, "the number is not finite"
        if isinstance(value, list):
            waiting.extend((f"{path}[{i}]", item) for i, item in enumerate(value))
        elif isinstance(value, dict):
            waiting.extend((f"{path}.{key}".lstrip("."), item) for key, item in value.items() if _is_unicode(key))
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
