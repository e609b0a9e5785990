"""What POST /v1/completions makes of a body. Numbers are those of the public cases that a row comes from."""

import json
from typing import Any

import pytest

from roundhouse.frontend.outputs import RequestOutputKind
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.app import build_app
from tests.support.asgi import Answer, post
from tests.support.scripted_llm import SETTINGS, ScriptedLLM, server_state, spell

PATH = "/v1/completions"


def ask(body: Any) -> tuple[Answer, ScriptedLLM]:
    llm = ScriptedLLM(spell("Hello"))
    return post(build_app(server_state(llm), SETTINGS), PATH, body), llm


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [{"prompt": "ab"}]),
        (["ab", "c"], [{"prompt": "ab"}, {"prompt": "c"}]),
        ([1, 2], [{"prompt_token_ids": [1, 2]}]),
        ([[1, 2], [3]], [{"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [3]}]),
    ],
)
def test_prompts_of_every_form(prompt: Any, expected: list[dict[str, Any]]) -> None:
    answer, llm = ask({"prompt": prompt})
    assert answer.status == 200
    assert [call.prompt for call in llm.calls] == expected
    assert {call.options["tokenization_kwargs"]["add_special_tokens"] for call in llm.calls} == {True}
    assert len({call.request_id for call in llm.calls}) == len(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {"max_tokens": 16}, id="19: default"),
        ({"max_tokens": None}, {"max_tokens": 16}),
        pytest.param({"logprobs": 0}, {"logprobs": 0}, id="11: logprobs 0"),
        ({"logprobs": 2, "echo": True}, {"logprobs": 2, "prompt_logprobs": 2}),
        ({"echo": True}, {}),
        pytest.param({"echo": True, "max_tokens": 0}, {"max_tokens": 1}, id="13: prompt only"),
        ({"best_of": 1, "suffix": ""}, {}),
    ],
)
def test_fields_become_sampling_params(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    answer, llm = ask({"prompt": "a", **fields})
    assert (answer.status, llm.calls[0].params) == (200, SamplingParams(**expected))


def test_a_stream_asks_for_deltas_and_an_answer_for_the_end() -> None:
    kinds = [ask({"prompt": "a", "stream": stream})[1].calls[0].output_kind for stream in (True, False)]
    assert kinds == [RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY]


REFUSED: list[tuple[str, dict[str, Any], str | None]] = [
    ("no prompt", {"prompt": None}, "prompt"),
    ("empty text", {"prompt": ""}, "prompt"),
    ("empty list", {"prompt": []}, "prompt"),
    ("a list of an empty list", {"prompt": [[]]}, "prompt"),
    ("a list of an empty text", {"prompt": ["a", ""]}, "prompt"),
    ("a mix", {"prompt": ["a", 1]}, "prompt"),
    ("a mix of lists", {"prompt": [1, [1]]}, "prompt[1]"),
    ("many lists, counted unmade", {"prompt": [[1]] * 129}, "prompt"),
    ("many lists of something else", {"prompt": [["a"]] * 129}, "prompt"),
    ("a number", {"prompt": 5}, "prompt"),
    ("a bool among ids", {"prompt": [True]}, "prompt[0]"),
    ("a float among ids", {"prompt": [1.0]}, "prompt[0]"),
    ("17: an id at the vocabulary's size", {"prompt": [256]}, "prompt"),
    ("17: a negative id", {"prompt": [1, -1]}, "prompt"),
    ("17: an id of 64 bit", {"prompt": [2**63]}, "prompt"),
    ("an id of 100 bit", {"prompt": [[2**100]]}, "prompt"),
    ("25: 1025 prompts", {"prompt": ["a"] * 1025}, "prompt"),
    ("25: n × prompts", {"prompt": ["a", "b"], "n": 65}, "n"),
    ("too long", {"prompt": "a" * 600}, "prompt"),
    ("too many ids", {"prompt": [1] * 600}, "prompt"),
    ("logprobs true", {"prompt": "a", "logprobs": True}, "logprobs"),
    ("logprobs 21", {"prompt": "a", "logprobs": 21}, "logprobs"),
    ("logprobs -1", {"prompt": "a", "logprobs": -1}, "logprobs"),
    ("max_tokens 0 without echo", {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    ("max_tokens -1 with echo", {"prompt": "a", "max_tokens": -1, "echo": True}, "max_tokens"),
    ("best_of 2", {"prompt": "a", "best_of": 2}, "best_of"),
    ("suffix", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("prompt_embeds", {"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds"),
    ("echo a text", {"prompt": "a", "echo": "yes"}, "echo"),
    ("response_format", {"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("body", "param"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_bad_bodies_are_refused_with_the_field(body: dict[str, Any], param: str | None, stream: bool) -> None:
    answer, _ = ask(json.dumps(body | ({"stream": True} if stream else {})).encode())
    error = answer.json["error"]
    assert (answer.status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert 0 < len(error["message"]) < 500


def test_one_bad_prompt_of_several_refuses_the_request_and_ends_the_others() -> None:
    answer, llm = ask({"prompt": ["a", "b" * 600], "stream": True})
    assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")
    assert len(llm.ended) <= 1
