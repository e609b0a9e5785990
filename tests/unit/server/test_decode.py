import json
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.server.decode import decode, decode_field
from roundhouse.server.schema import ChatCompletionBody, GenerationBody


class Body(GenerationBody, kw_only=True):
    prompt: str | list[str | int | list[int]]


CHAT = msgspec.json.Decoder(ChatCompletionBody)
COMPLETION = msgspec.json.Decoder(Body)


def refusal(body: bytes) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as caught:
        decode(COMPLETION, body)
    return caught.value.param, caught.value.message


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"", None, "The request body is empty; a JSON object is needed"),
        (b"{", None, "The body is not valid JSON: Input data was truncated"),
        (b"[]", None, "Expected `object`, got `array`"),
        (b"null", None, "Expected `object`, got `null`"),
        (b'{"prompt":"a"} x', None, "The body is not valid JSON: JSON is malformed: trailing characters (byte 16)"),
        (b"{}", "prompt", "prompt: Object missing required field `prompt`"),
        (b'{"prompt":{}}', "prompt", "prompt: Expected `str | array`, got `object`"),
        (b'{"prompt":[[1,"a"]]}', "prompt[0][1]", "prompt[0][1]: Expected `int`, got `str`"),
        (b'{"prompt":"a","n":true}', "n", "n: Expected `int`, got `bool`"),
        (b'{"prompt":"a","n":1.5}', "n", "n: Expected `int`, got `float`"),
        (b'{"prompt":"a","temperature":"0.5"}', "temperature", "temperature: Expected `float`, got `str`"),
        (b'{"prompt":"a","temperature":1e999}', "temperature", "temperature: Number out of range"),
        (b'{"prompt":"a","temperature":NaN}', "temperature", "temperature: the number is not finite"),
        (b'{"prompt":"a","top_p":-Infinity}', "top_p", "top_p: the number is not finite"),
        (b'{"prompt":"a","logit_bias":{"x":1}}', "logit_bias", "logit_bias: Expected `int`, got `str`"),
        (b'{"prompt":"a","logit_bias":{"1":"x"}}', "logit_bias", "logit_bias: Expected `float`, got `str`"),
        (
            b'{"prompt":"a","stop":["b","\\ud800"]}',
            "stop[1]",
            "stop[1]: the text holds half of a surrogate pair, which is no character",
        ),
    ],
)
def test_faults_are_named_with_their_place(body: bytes, param: str | None, message: str) -> None:
    assert refusal(body) == (param, message)


def test_deep_nesting_is_refused() -> None:
    assert refusal(b'{"prompt":"a","zz":' + b"[" * 100_000) == (None, "The JSON body is nested too deeply")


def test_a_huge_number_costs_nothing() -> None:
    started = time.monotonic()
    assert refusal(b'{"prompt":"a","n":' + b"9" * 1_000_000 + b"}")[0] == "n"
    assert time.monotonic() - started < 1.0


def test_a_million_faults_cost_one_message() -> None:
    param, message = refusal(b'{"prompt":[' + b'["x"],' * 1_000_000 + b"[]]}")
    assert (param, len(message) < 300) == ("prompt[0][0]", True)


def test_what_a_client_sent_is_echoed_in_part_only() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(CHAT, b'{"messages":[{"role":"' + b"r" * 10_000 + b'"}]}')
    assert caught.value.param == "messages[0].role"
    assert len(caught.value.message) < 300


def test_null_means_the_default_and_unknown_fields_are_ignored() -> None:
    body = decode(
        COMPLETION, b'{"prompt":"a","temperature":null,"stop":null,"zz":{"a":[123456789012345678901234567890]}}'
    )
    assert body == Body(prompt="a")


@given(st.text(alphabet=st.characters()))
def test_any_text_arrives_as_it_was_sent(text: str) -> None:
    raw = json.dumps({"prompt": text}).encode()
    try:
        text.encode()
    except UnicodeEncodeError:
        assert refusal(raw)[0] == "prompt"
    else:
        assert decode(COMPLETION, raw).prompt == text


@pytest.mark.parametrize(
    ("text", "place"),
    [(b"5", "f"), (b'{"a":"b"}', "f"), (b'[1,"b"]', "f[1]"), (b"[[", "f[0]"), (b"[1,2,3,4,5,6]", "f")],
)
def test_a_field_that_was_left_as_it_came_names_its_place(text: bytes, place: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_field(msgspec.json.Decoder(list[int]), msgspec.Raw(text), param="f", max_bytes=12)
    assert caught.value.param == place
    assert caught.value.message.startswith(f"{place}")


@pytest.mark.parametrize(("text", "value"), [(b"", None), (b"null", None), (b"[1]", [1])])
def test_a_field_that_was_left_as_it_came(text: bytes, value: list[int] | None) -> None:
    assert decode_field(msgspec.json.Decoder(list[int]), msgspec.Raw(text), param="f", max_bytes=12) == value
