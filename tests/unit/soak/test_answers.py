"""What counts as a whole answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.soak.answers import Answered, check_stream, check_whole
from tests.soak.mix import COMPLETIONS, Request
from tests.soak.tally import Unexpected

TWO = Request("n > 1", COMPLETIONS, {"n": 2, "max_tokens": 4, "stream": True})
USAGE = {"completion_tokens": 7}


def chunk(index: int, end: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": "x", "finish_reason": end}], "usage": None}


GOOD: list[dict[str, Any]] = [chunk(0), chunk(1, "stop"), chunk(0, "length"), {"choices": [], "usage": USAGE}]


def stream(events: list[dict[str, Any]], end: bytes = b"data: [DONE]\n\n") -> list[bytes]:
    """In parts that know nothing of events."""
    data = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events) + end
    return [data[i : i + 7] for i in range(0, len(data), 7)]


def test_a_whole_stream() -> None:
    assert check_stream(TWO, stream(GOOD)) == Answered(("length", "stop"), 7)
    assert check_stream(TWO, [b": keep-alive\n\n", *stream(GOOD)]) == Answered(("length", "stop"), 7)


@pytest.mark.parametrize(
    ("parts", "what"),
    [
        (stream(GOOD, b""), r"no \[DONE\]"),
        (stream(GOOD, b"data: [DONE]"), r"no \[DONE\]"),
        ([], r"no \[DONE\]"),
        (stream([*GOOD[:2], GOOD[3]]), "2 choices should have ended"),
        (stream([*GOOD[:2], chunk(0, "abort"), GOOD[3]]), "should have ended by stop or length"),
        (stream([*GOOD[:3], chunk(0), GOOD[3]]), "choice 0 goes on behind its finish reason length"),
        (stream(GOOD[:3]), "no usage"),
        (stream([*GOOD[:3], {"choices": [], "usage": {"completion_tokens": 9}}]), "9 completion tokens"),
        (stream([*GOOD[:3], {"choices": [], "usage": {"completion_tokens": 1}}]), "1 completion tokens"),
        (stream([GOOD[0], {"error": {"code": "engine_dead"}}]), "engine_dead"),
        ([b"data: {oh\n\ndata: [DONE]\n\n"], "no JSON"),
    ],
)
def test_streams_that_are_not_whole(parts: list[bytes], what: str) -> None:
    with pytest.raises(Unexpected, match=what):
        check_stream(TWO, parts)


def test_a_stop_string_may_come_first() -> None:
    stopped = Request("stop strings", COMPLETIONS, {"max_tokens": 4, "stream": True, "stop": ["."]})
    events = [chunk(0, "stop"), {"choices": [], "usage": {"completion_tokens": 0}}]
    assert check_stream(stopped, stream(events)) == Answered(("stop",), 0)


def test_whole_answers() -> None:
    choices = [{"index": 1, "finish_reason": "stop"}, {"index": 0, "finish_reason": "length"}]
    answer = {"choices": choices, "usage": USAGE}
    assert check_whole(TWO, msgspec.json.encode(answer)) == Answered(("length", "stop"), 7)
    with pytest.raises(Unexpected, match="2 choices should have ended"):
        check_whole(TWO, msgspec.json.encode(answer | {"choices": choices[:1]}))
