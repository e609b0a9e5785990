from typing import Any

from roundhouse.frontend.outputs import RequestOutput
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.generation import Generation, Prompt
from roundhouse.server.usage import Usage


def usage_of(num_prompts: int, n: int) -> Usage:
    return Usage(Generation("cmpl-r", 0, "m", [Prompt(text="a")] * num_prompts, SamplingParams(n=n)))


def output(num_prompt_tokens: int, num_cached_tokens: int = 0) -> RequestOutput:
    return RequestOutput("r", None, [7] * num_prompt_tokens, [], False, num_cached_tokens=num_cached_tokens)


def as_json(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def test_nothing_came_yet() -> None:
    assert usage_of(1, 1).total() == as_json(0, 0)


def test_a_prompt_is_counted_once_however_many_outputs_and_choices_it_has() -> None:
    usage = usage_of(1, 3)
    for _ in range(4):
        usage.see_prompt(0, output(10, 8))
    usage.completion_tokens[0] += 1
    usage.completion_tokens[1] += 2
    usage.completion_tokens[2] += 4
    assert usage.total() == as_json(10, 7, 8)


def test_a_chunk_has_the_tokens_of_its_prompt_and_its_choice() -> None:
    usage = usage_of(2, 2)
    usage.see_prompt(0, output(10, 8))
    usage.see_prompt(1, output(100, 16))
    usage.completion_tokens[:] = [1, 2, 3, 4]
    assert usage.of_choice(0, 1) == as_json(10, 2, 8)
    assert usage.of_choice(1, 2) == as_json(100, 3, 16)
    assert usage.total() == as_json(110, 10, 24)
