import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.chunk import ChunkTemplate, encode_text
from roundhouse.server.generation import Generation, Prompt


def generation(**changes) -> Generation:
    values = {
        "response_id": "cmpl-1",
        "created": 7,
        "model": "m",
        "prompts": [Prompt(text="a")],
        "params": SamplingParams(),
    }
    return Generation(**(values | changes))


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_a_text_is_one_line_of_json_for_every_client(text: str) -> None:
    encoded = encode_text(text)
    assert msgspec.json.decode(encoded) == text
    assert len(encoded.decode().splitlines()) == 1


@pytest.mark.parametrize("separator", ["\x85", "\u2028", "\u2029", "\n", "\r", "\x0b", "\x1c"])
def test_line_separators_are_escaped(separator: str) -> None:
    assert encode_text(f"é{separator}é").decode().splitlines() == [encode_text(f"é{separator}é").decode()]


def test_events() -> None:
    template = ChunkTemplate(generation(), "text_completion")
    head = b'data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":['
    assert template.event({"index": 0}) == head + b'{"index":0}]}\n\n'
    assert template.event({"index": 0}, {"n": 1}) == head + b'{"index":0}],"usage":{"n":1}}\n\n'
    assert template.event({"index": 0}, ids=[1]) == head + b'{"index":0}],"ids":[1]}\n\n'
    assert template.event({"index": 0}, {"n": 1}, ids=[1]) == head + b'{"index":0}],"ids":[1],"usage":{"n":1}}\n\n'
    assert template.usage_event({"n": 1}) == head + b'],"usage":{"n":1}}\n\n'


def test_chunks_say_null_while_the_usage_is_still_to_come() -> None:
    template = ChunkTemplate(generation(include_usage=True), "text_completion")
    assert template.event({"index": 0}).endswith(b'{"index":0}],"usage":null}\n\n')


def test_a_model_name_cannot_break_the_template() -> None:
    event = ChunkTemplate(generation(model='a"\n\u2028{%d}'), "text_completion").event({})
    assert msgspec.json.decode(event.removeprefix(b"data: "))["model"] == 'a"\n\u2028{%d}'
    assert event.decode().rstrip("\n").splitlines() == [event.decode().rstrip("\n")]
