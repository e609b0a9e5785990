import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from roundhouse.frontend.outputs import RequestOutputKind
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.generation import Generation, Prompt
from tests.support.scripted_llm import Call, ScriptedLLM, server_state, spell


def generation(*prompts: Prompt, **fields: Any) -> Generation:
    return Generation("cmpl-r", 0, "m", list(prompts), SamplingParams(n=2), **fields)


def calls_of(request: Generation, new_id: str = "0123456789abcdef") -> list[Call]:
    """What `AsyncLLM` is asked when every generator is read to its end."""

    async def read_all(llm: ScriptedLLM) -> None:
        state = server_state(llm, new_id=lambda: new_id)
        for outputs in request.start(state, RequestOutputKind.DELTA):
            async with aclosing(outputs):
                async for _ in outputs:
                    pass

    llm = ScriptedLLM(spell("a"))
    asyncio.run(read_all(llm))
    return llm.calls


@pytest.mark.parametrize(
    ("prompt", "cache_salt", "expected"),
    [
        (Prompt(text="hi"), None, {"prompt": "hi"}),
        (Prompt(text=""), None, {"prompt": ""}),
        (Prompt(token_ids=[1, 2]), None, {"prompt_token_ids": [1, 2]}),
        (Prompt(text="hi"), "salt", {"prompt": "hi", "cache_salt": "salt"}),
        (Prompt(token_ids=[1]), "salt", {"prompt_token_ids": [1], "cache_salt": "salt"}),
    ],
)
def test_a_prompt_as_the_llm_takes_it(prompt: Prompt, cache_salt: str | None, expected: dict[str, Any]) -> None:
    assert prompt.for_llm(cache_salt) == expected


def test_one_prompt_is_one_request_with_an_id_of_its_own() -> None:
    request = generation(Prompt(text="hi", add_special_tokens=False), priority=3, cache_salt="salt")
    assert calls_of(request) == [
        Call(
            prompt={"prompt": "hi", "cache_salt": "salt"},
            params=SamplingParams(n=2),
            request_id="cmpl-r-01234567",
            output_kind=RequestOutputKind.DELTA,
            options={"tokenization_kwargs": {"add_special_tokens": False}, "priority": 3},
        )
    ]


def test_several_prompts_are_numbered() -> None:
    request = generation(Prompt(text="hi"), Prompt(token_ids=[1, 2]), Prompt(text="ho", add_special_tokens=False))
    assert request.num_choices == 6
    assert [(call.request_id, call.prompt, call.options["tokenization_kwargs"]) for call in calls_of(request)] == [
        ("cmpl-r-01234567-0", {"prompt": "hi"}, {"add_special_tokens": True}),
        ("cmpl-r-01234567-1", {"prompt_token_ids": [1, 2]}, {"add_special_tokens": True}),
        ("cmpl-r-01234567-2", {"prompt": "ho"}, {"add_special_tokens": False}),
    ]


def test_nothing_is_asked_before_somebody_reads() -> None:
    llm = ScriptedLLM(spell("a"))
    generators = generation(Prompt(text="hi"), Prompt(text="ho")).start(server_state(llm), RequestOutputKind.DELTA)
    assert (len(generators), llm.calls) == (2, [])
