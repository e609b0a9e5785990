"""The answer is what was asked for, with the real model, and whoever asks for too much is refused and hurts nobody."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.serve_process import ServeProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "age"],
    "additionalProperties": False,
}
CHAIN = "start:a0\n" + "".join(f"a{i}:a{i + 1}\n" for i in range(1000)) + 'a1000:"b"'
REFUSED: dict[str, dict[str, Any]] = {
    "response_format": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "https://example.com/a"}}}
    },
    "structured_outputs": {"structured_outputs": {"grammar": "start: missing"}},
    "guided_regex": {"guided_regex": "(?=a)b"},
    "guided_json": {"guided_json": {"allOf": [{"$ref": "#"}], "type": "object"}},
    "guided_grammar": {"guided_grammar": "r: r\n" * 10**5},
    "guided_choice": {"guided_choice": ["x"] * 5000},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path_factory.mktemp("serve") / "log", "smollm2", ["--max-num-seqs", "8"]) as server:
        yield server


@pytest.fixture
def client(server: ServeProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def complete(server: ServeProcess, **body: Any) -> httpx.Response:
    body = {"model": "smollm2", "prompt": "Answer:", "max_tokens": 24, "temperature": 1, "seed": 3, **body}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=300)


def texts(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    return [choice["text"] for choice in choices]


def test_the_sdk_gets_json_of_its_schema_whole_and_streamed(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "City and age as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "max_tokens": 60,
        "seed": 5,
        "temperature": 0.7,
    }
    text = client.chat.completions.create(**arguments).choices[0].message.content
    assert text is not None
    value = json.loads(text)
    assert set(value) == {"city", "age"}
    assert (value["city"] in ("Bern", "Rome"), value["age"] in range(100)) == (True, True)
    chunks = client.chat.completions.create(**arguments, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text


def test_choice_regex_and_grammar_hold_for_every_choice(server: ServeProcess) -> None:
    assert set(texts(complete(server, guided_choice=["red", "green"], n=3))) <= {"red", "green"}
    for text in texts(complete(server, structured_outputs={"regex": "[0-9]{3}-[a-f]{2}"}, n=2, min_tokens=12)):
        assert re.fullmatch("[0-9]{3}-[a-f]{2}", text)
    assert texts(complete(server, guided_grammar='root ::= "ja" | "nein"', ignore_eos=True))[0] in ("ja", "nein")


def test_what_cannot_be_compiled_is_refused_by_its_field_and_the_engine_serves_on(server: ServeProcess) -> None:
    for name, fields in REFUSED.items():
        started = time.monotonic()
        answer = complete(server, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), answer.text
        assert time.monotonic() - started < 30
    # It compiles, and needs a deep stack for that.
    assert texts(complete(server, guided_grammar=CHAIN)) == ["b"]
    assert texts(complete(server, guided_choice=["still here"])) == ["still here"]
