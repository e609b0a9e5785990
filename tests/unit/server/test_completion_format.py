"""Golden bytes of completion streams, and echo in all its forms."""

from typing import Any

import msgspec

from roundhouse.frontend.outputs import CompletionOutput, RequestOutput
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.completion_format import CompletionFormat
from roundhouse.server.generation import Generation, Prompt
from roundhouse.server.logprobs import joined
from tests.support.scripted_llm import ByteTokenizer, position

HEAD = 'data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":['
AB = Prompt(text="ab")


def completion_format(
    params: SamplingParams | None = None,
    prompts: tuple[Prompt, ...] = (AB,),
    *,
    echo: bool = False,
    prompt_only: bool = False,
    **changes: Any,
) -> CompletionFormat:
    generation = Generation(
        response_id="cmpl-1", created=7, model="m", prompts=list(prompts), params=params or SamplingParams(), **changes
    )
    return CompletionFormat(generation, ByteTokenizer(), echo=echo, prompt_only=prompt_only)


def output(*choices: CompletionOutput, ids: tuple[int, ...] = (97, 98), num_prompt_logprobs: int | None = None):
    rest = None if num_prompt_logprobs is None else [position(token_id, num_prompt_logprobs) for token_id in ids[1:]]
    return RequestOutput(
        "x",
        "ab",
        list(ids),
        list(choices),
        all(choice.finished for choice in choices),
        prompt_logprobs=None if rest is None else [None, *rest],
    )


def written(form: CompletionFormat, *outputs: tuple[int, RequestOutput]) -> list[str]:
    writes: list[str] = []
    for prompt_index, one in outputs:
        parts: list[bytes] = []
        form.write(prompt_index, one, parts)
        writes.append(b"".join(parts).decode())
    return writes


def choices(text: str) -> list[dict[str, Any]]:
    events = [msgspec.json.decode(event.removeprefix("data: ")) for event in text.split("\n\n") if event]
    return [choice for event in events for choice in event["choices"]]


def test_a_stream() -> None:
    assert written(
        completion_format(),
        (0, output(CompletionOutput(0, "é", [1]))),
        (0, output(CompletionOutput(0, "", [2]))),
        (0, output(CompletionOutput(0, "", [], finish_reason="stop", stop_reason=9))),
    ) == [
        f'{HEAD}{{"index":0,"text":"é","logprobs":null,"finish_reason":null}}]}}\n\n',
        "",
        f'{HEAD}{{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":9}}]}}\n\n',
    ]


def test_choices_are_numbered_prompt_by_prompt() -> None:
    form = completion_format(SamplingParams(n=2), (AB, AB))
    first, second = written(
        form,
        (1, output(CompletionOutput(0, "c", [1]))),
        (0, output(CompletionOutput(1, "b", [1], finish_reason="length"))),
    )
    assert [choice["index"] for choice in choices(first) + choices(second)] == [2, 1]
    assert form.usage.total()["completion_tokens"] == 2


def test_an_echo_comes_once_before_each_choice() -> None:
    form = completion_format(SamplingParams(n=2), echo=True)
    first, second = written(
        form,
        (0, output(CompletionOutput(1, "c", [1]))),
        (0, output(CompletionOutput(0, "d", [1]))),
    )
    assert [(choice["index"], choice["text"]) for choice in choices(first) + choices(second)] == [
        (0, "ab"),
        (1, "ab"),
        (1, "c"),
        (0, "d"),
    ]


def test_an_echo_of_ids_is_their_text() -> None:
    form = completion_format(prompts=(Prompt(token_ids=[72, 105]),), echo=True)
    body = msgspec.json.decode(
        form.whole([output(CompletionOutput(0, "!", [33], finish_reason="stop"), ids=(72, 105))])
    )
    assert body["choices"][0]["text"] == "Hi!"


def test_echoed_logprobs_go_before_the_outputs_with_offsets_that_go_on() -> None:
    params = SamplingParams(logprobs=1, prompt_logprobs=1)
    choice = CompletionOutput(0, "c", [99], logprobs=[position(99, 1)], finish_reason="length")
    whole = msgspec.json.decode(completion_format(params, echo=True).whole([output(choice, num_prompt_logprobs=1)]))
    assert whole["choices"] == [
        {
            "index": 0,
            "text": "abc",
            "logprobs": {
                "text_offset": [0, 1, 2],
                "token_logprobs": [None, -0.5, -0.5],
                "tokens": ["a", "b", "c"],
                "top_logprobs": [None, {"b": -0.5}, {"c": -0.5}],
            },
            "finish_reason": "length",
            "stop_reason": None,
        }
    ]
    (streamed,) = written(completion_format(params, echo=True), (0, output(choice, num_prompt_logprobs=1)))
    prompt_chunk, output_chunk = choices(streamed)
    assert joined(prompt_chunk["logprobs"], output_chunk["logprobs"]) == whole["choices"][0]["logprobs"]


def test_a_prompt_alone_case_13() -> None:
    params = SamplingParams(max_tokens=1, logprobs=1, prompt_logprobs=1)
    one = output(
        CompletionOutput(0, "c", [99], logprobs=[position(99, 1)], finish_reason="stop", stop_reason=99),
        num_prompt_logprobs=1,
    )
    logprobs = {
        "text_offset": [0, 1],
        "token_logprobs": [None, -0.5],
        "tokens": ["a", "b"],
        "top_logprobs": [None, {"b": -0.5}],
    }
    form = completion_format(params, echo=True, prompt_only=True, return_token_ids=True)
    body = msgspec.json.decode(form.whole([one]))
    assert body["choices"] == [
        {
            "index": 0,
            "text": "ab",
            "logprobs": logprobs,
            "finish_reason": "length",
            "stop_reason": None,
            "prompt_token_ids": [97, 98],
            "token_ids": [],
        }
    ]
    assert body["usage"]["completion_tokens"] == 0
    form = completion_format(params, echo=True, prompt_only=True)
    (streamed,) = written(form, (0, one))
    assert choices(streamed) == [
        {"index": 0, "text": "ab", "logprobs": logprobs, "finish_reason": None},
        {"index": 0, "text": "", "logprobs": None, "finish_reason": "length", "stop_reason": None},
    ]
    assert form.usage.total()["completion_tokens"] == 0


def test_token_ids_on_request() -> None:
    form = completion_format(return_token_ids=True)
    (streamed,) = written(form, (0, output(CompletionOutput(0, "c", [99]))))
    opening, text = choices(streamed)
    assert (opening["prompt_token_ids"], opening["token_ids"], text["token_ids"]) == ([97, 98], [], [99])
    assert opening["text"] == ""


def test_a_whole_answer() -> None:
    form = completion_format(SamplingParams(n=1), (AB, AB))
    one = [output(CompletionOutput(0, "c", [1, 2], finish_reason="stop", stop_reason="x")) for _ in range(2)]
    assert msgspec.json.decode(form.whole(one)) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 7,
        "model": "m",
        "choices": [
            {"index": i, "text": "c", "logprobs": None, "finish_reason": "stop", "stop_reason": "x"} for i in range(2)
        ],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 4,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "system_fingerprint": None,
    }
