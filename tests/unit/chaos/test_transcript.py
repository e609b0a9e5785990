import json
from typing import Any

import pytest

from tests.chaos.transcript import Answer, Choice, difference

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def event(**part: Any) -> str:
    return f"data: {json.dumps(part)}"


def text_choice(text: str, token_ids: list[int], end: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "token_ids": token_ids, "finish_reason": end, "logprobs": None} | more


def read(*lines: str) -> Answer:
    answer = Answer()
    for line in lines:
        answer.feed_line(line)
    return answer


def test_a_stream_of_a_completion() -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.5], "text_offset": [0], "top_logprobs": [{"a": -0.5}]}
    answer = read(
        event(choices=[text_choice("a", [1], logprobs=logprobs)]),
        "",
        ": keep-alive",
        event(choices=[text_choice("x", [9], index=1)]),
        event(choices=[text_choice("b", [2], "length")]),
        event(choices=[], usage=USAGE),
        "data: [DONE]",
    )
    choices = {0: Choice("ab", [1, 2], [["a", -0.5, 0, {"a": -0.5}]], "length"), 1: Choice("x", [9])}
    assert answer == Answer(choices, USAGE, None, num_comments=1, is_whole=True)
    assert answer.num_tokens == 3


def test_a_stream_and_a_body_of_a_chat_are_the_same_answer() -> None:
    entry = {"token": "a", "logprob": -0.5, "top_logprobs": []}
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    second = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry]}, "token_ids": [1]}
    answer = read(
        event(choices=[first]),
        event(choices=[second | {"finish_reason": None}]),
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop", "token_ids": []}]),
        event(choices=[], usage=USAGE),
        "data: [DONE]",
    )
    whole = Answer()
    shaped = {"index": 0, "message": {"content": "a"}, "logprobs": {"content": [entry]}, "token_ids": [1]}
    whole.feed_body(json.dumps({"choices": [shaped | {"finish_reason": "stop"}], "usage": USAGE}).encode())
    assert answer == whole == Answer({0: Choice("a", [1], [[entry]], "stop")}, USAGE, is_whole=True)


def test_a_stream_with_an_error_event_is_not_whole() -> None:
    answer = read(event(choices=[text_choice("a", [1])]), event(error={"code": "engine_dead"}), "data: [DONE]")
    assert (answer.is_whole, answer.error) == (False, {"code": "engine_dead"})


@pytest.mark.parametrize("lines", [["event: x"], ["data: [DONE]", event(choices=[])]])
def test_a_line_out_of_place_is_refused(lines: list[str]) -> None:
    with pytest.raises(ValueError, match="out of place"):
        read(*lines)


def answer(**changed: Any) -> Answer:
    fields = {"text": "ab", "token_ids": [1, 2], "logprobs": [-0.5, -1.5], "finish_reason": "length"} | changed
    return Answer({0: Choice(**fields)}, USAGE, is_whole=True)


@pytest.mark.parametrize(
    ("changed", "story"),
    [
        ({"token_ids": [1, 3]}, "choice 0: token_ids from 1 of 2 on: [3] instead of [2]"),
        ({"token_ids": [1]}, "choice 0: token_ids from 1 of 2 on: [] instead of [2]"),
        ({"text": "ac"}, "choice 0: text 'ac' instead of 'ab'"),
        ({"finish_reason": None}, "choice 0: finish_reason None instead of 'length'"),
        (
            {"logprobs": [-0.5, -1.5000000000000002]},
            "choice 0: logprobs from 1 of 2 on: [-1.5000000000000002] instead of [-1.5]",
        ),
        ({}, None),
    ],
)
def test_difference_tells_the_first_thing(changed: dict[str, Any], story: str | None) -> None:
    assert difference(answer(**changed), answer()) == story


def test_difference_of_what_is_beside_the_choices() -> None:
    expected = answer()
    assert difference(Answer(), expected) == "not whole: None, 0 tokens"
    other = Answer(expected.choices, {}, is_whole=True)
    assert difference(other, expected) == f"usage {{}} instead of {USAGE}"
    fewer = Answer({}, USAGE, is_whole=True)
    assert difference(fewer, expected) == "choices [] instead of [0]"


def test_comments_and_cached_tokens_make_no_difference() -> None:
    expected = answer()
    usage = USAGE | {"prompt_tokens_details": {"cached_tokens": 2}}
    assert difference(Answer(expected.choices, usage, None, 4, True), expected) is None
