"""Golden bytes of chat streams, written by hand from OpenAI's and vLLM's."""

from typing import Any

import msgspec
import pytest

from roundhouse.frontend.outputs import CompletionOutput, RequestOutput
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.chat_format import ChatFormat
from roundhouse.server.generation import Generation, Prompt
from tests.support.scripted_llm import position

HEAD = 'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":['
ROLE = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'


def chat_format(params: SamplingParams | None = None, **changes: Any) -> ChatFormat:
    return ChatFormat(
        Generation(
            response_id="chatcmpl-1",
            created=7,
            model="m",
            prompts=[Prompt(text="a")],
            params=params or SamplingParams(),
            **changes,
        )
    )


def delta(*choices: CompletionOutput) -> RequestOutput:
    finished = all(choice.finished for choice in choices)
    return RequestOutput("x", "a", [97, 98], list(choices), finished, num_cached_tokens=1)


def written(form: ChatFormat, *outputs: RequestOutput) -> list[str]:
    """The bytes of each output."""
    writes: list[str] = []
    for output in outputs:
        parts: list[bytes] = []
        form.write(0, output, parts)
        writes.append(b"".join(parts).decode())
    return writes


def test_a_stream() -> None:
    assert written(
        chat_format(),
        delta(CompletionOutput(0, "Hé\n", [1, 2])),
        delta(CompletionOutput(0, "", [3])),
        delta(CompletionOutput(0, '"', [4])),
        delta(CompletionOutput(0, "!", [5], finish_reason="stop")),
    ) == [
        f'{HEAD}{{"index":0,{ROLE}]}}\n\n'
        f'{HEAD}{{"index":0,"delta":{{"content":"Hé\\n"}},"logprobs":null,"finish_reason":null}}]}}\n\n',
        "",
        f'{HEAD}{{"index":0,"delta":{{"content":"\\""}},"logprobs":null,"finish_reason":null}}]}}\n\n',
        f'{HEAD}{{"index":0,"delta":{{"content":"!"}},"logprobs":null,"finish_reason":"stop","stop_reason":null}}]}}\n\n',
    ]


def test_an_end_without_text_case_27() -> None:
    (write,) = written(chat_format(), delta(CompletionOutput(0, "", [], finish_reason="stop", stop_reason="###")))
    assert write == (
        f'{HEAD}{{"index":0,{ROLE}]}}\n\n'
        f'{HEAD}{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"stop","stop_reason":"###"}}]}}\n\n'
    )


def test_every_choice_opens_before_the_first_text() -> None:
    (write,) = written(chat_format(SamplingParams(n=2)), delta(CompletionOutput(1, "b", [1])))
    assert write == (
        f'{HEAD}{{"index":0,{ROLE}]}}\n\n{HEAD}{{"index":1,{ROLE}]}}\n\n'
        f'{HEAD}{{"index":1,"delta":{{"content":"b"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
    )


def test_usage_is_null_until_its_own_chunk() -> None:
    form = chat_format(include_usage=True)
    first, last = written(
        form,
        delta(CompletionOutput(0, "a", [1])),
        delta(CompletionOutput(0, "b", [2, 3], finish_reason="length")),
    )
    assert first.count(',"usage":null}') == 2
    assert last.count(',"usage":null}') == 1
    assert form.chunks.usage_event(form.usage.total()).decode() == (
        f'{HEAD}],"usage":{{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,'
        f'"prompt_tokens_details":{{"cached_tokens":1}}}}}}\n\n'
    )


def test_continuous_usage_counts_the_choice() -> None:
    form = chat_format(SamplingParams(n=2), include_usage=True, continuous_usage=True)
    first, second = written(
        form,
        delta(CompletionOutput(0, "a", [1]), CompletionOutput(1, "b", [2, 3])),
        delta(CompletionOutput(1, "c", [4])),
    )
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks(first)] == [0, 0, 1, 2]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks(second)] == [3]


def chunks(text: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(event.removeprefix("data: ")) for event in text.split("\n\n") if event]


def test_logprobs_go_with_their_tokens_even_where_the_text_waits() -> None:
    form = chat_format(SamplingParams(logprobs=0))
    first, second, last = written(
        form,
        delta(CompletionOutput(0, "", [72], logprobs=[position(72, 0)])),
        delta(CompletionOutput(0, "Hi", [105], logprobs=[position(105, 0)])),
        delta(CompletionOutput(0, "", [], logprobs=[], finish_reason="stop")),
    )
    entry = {"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": []}
    assert chunks(first)[1]["choices"] == [
        {
            "index": 0,
            "delta": {"content": ""},
            "logprobs": {"content": [entry], "refusal": None},
            "finish_reason": None,
        }
    ]
    assert [len(chunk["choices"][0]["logprobs"]["content"]) for chunk in chunks(second)] == [1]
    assert chunks(last)[0]["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]


def test_token_ids_on_request() -> None:
    (write,) = written(chat_format(return_token_ids=True), delta(CompletionOutput(0, "a", [1])))
    opening, text = chunks(write)
    assert (opening["prompt_token_ids"], text["choices"][0]["token_ids"]) == ([97, 98], [1])


def test_a_whole_answer() -> None:
    form = chat_format(SamplingParams(n=2, logprobs=1), return_token_ids=True)
    choices = [
        CompletionOutput(1, "H", [72], logprobs=[position(72, 1)], finish_reason="length"),
        CompletionOutput(0, "", [], logprobs=[], finish_reason="stop", stop_reason=5),
    ]
    token = {"token": "H", "logprob": -0.5, "bytes": [72]}
    assert msgspec.json.decode(form.whole([delta(*choices)])) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "", "refusal": None},
                "logprobs": {"content": [], "refusal": None},
                "finish_reason": "stop",
                "stop_reason": 5,
                "token_ids": [],
            },
            {
                "index": 1,
                "message": {"role": "assistant", "content": "H", "refusal": None},
                "logprobs": {"content": [token | {"top_logprobs": [token]}], "refusal": None},
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": [72],
            },
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 1,
            "total_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
        "service_tier": None,
        "system_fingerprint": None,
        "prompt_token_ids": [97, 98],
    }


@pytest.mark.parametrize("text", ["\u2028", "\x85", "\U0001f600", "\\", "</script>"])
def test_any_text_is_one_event(text: str) -> None:
    (write,) = written(chat_format(), delta(CompletionOutput(0, text, [1])))
    assert chunks(write)[1]["choices"][0]["delta"] == {"content": text}
    assert len(write.splitlines()) == 4
