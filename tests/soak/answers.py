"""Whether an answer is whole: what every client that behaves is promised. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.soak.mix import Request
from tests.soak.tally import Unexpected

GOOD_ENDS = ("stop", "length")
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Answered:
    """A finish reason for each choice, and the completion tokens that the usage tells."""

    finish_reasons: tuple[str, ...]
    num_tokens: int


def check_whole(request: Request, body: bytes) -> Answered:
    """Of an answer without a stream. Raises `Unexpected`."""
    answer = _json(body)
    ends = {choice["index"]: choice["finish_reason"] for choice in answer["choices"]}
    return _checked(request, ends, answer.get("usage"))


def check_stream(request: Request, parts: Iterable[bytes]) -> Answered:
    """Of a stream's body. Raises `Unexpected`."""
    events = b"".join(parts).split(b"\n\n")
    if events[-1] != b"" or len(events) < 2 or events[-2] != b"data: [DONE]":
        raise Unexpected(f"the stream has no [DONE] at its end but {b' '.join(events[-2:])[-200:]!r}")
    ends: dict[int, str] = {}
    usage: dict[str, Any] | None = None
    for event in events[:-2]:
        if event.startswith(b":"):
            continue
        chunk = _json(event.removeprefix(b"data: "))
        if "error" in chunk:
            raise Unexpected(f"error event: {chunk['error']}")
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            index, end = choice["index"], choice["finish_reason"]
            if index in ends:
                raise Unexpected(f"choice {index} goes on behind its finish reason {ends[index]}")
            if end is not None:
                ends[index] = end
    return _checked(request, ends, usage)


def _json(data: bytes) -> dict[str, Any]:
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        raise Unexpected(f"no JSON: {error}: {data[:200]!r}") from error


def _checked(request: Request, ends: dict[int, str], usage: dict[str, Any] | None) -> Answered:
    if sorted(ends) != list(range(request.num_choices)) or not set(ends.values()) <= set(GOOD_ENDS):
        raise Unexpected(f"{request.num_choices} choices should have ended by stop or length, but {ends}")
    if usage is None:
        raise Unexpected("the answer has no usage")
    num_tokens = usage["completion_tokens"]
    # The tokens of a stop string are not counted, and it may be the first thing that comes.
    fewest = 0 if "stop" in request.body else request.num_choices
    if not fewest <= num_tokens <= request.num_choices * request.body["max_tokens"]:
        raise Unexpected(f"{num_tokens} completion tokens of at most {request.body['max_tokens']} for each choice")
    return Answered(tuple(ends[i] for i in range(request.num_choices)), num_tokens)
