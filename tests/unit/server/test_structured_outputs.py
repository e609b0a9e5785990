from typing import Any

import msgspec
import pytest

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import StructuredOutputsParams
from roundhouse.server.schema import CompletionBody
from roundhouse.server.structured_outputs import field_of, make_structured_outputs

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = msgspec.json.encode(SCHEMA).decode()


def body(**fields: Any) -> CompletionBody:
    return msgspec.json.decode(msgspec.json.encode({"prompt": "p", **fields}), type=CompletionBody)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": None, "structured_outputs": None, "guided_json": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"structured_outputs": {}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutputsParams(json_object=True)),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": SCHEMA},
                }
            },
            StructuredOutputsParams(json=TEXT),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, StructuredOutputsParams(json=TEXT)),
        ({"structured_outputs": {"json": TEXT}}, StructuredOutputsParams(json=TEXT)),
        ({"structured_outputs": {"regex": "a+"}}, StructuredOutputsParams(regex="a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutputsParams(choice=["a", "b"])),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, StructuredOutputsParams(grammar='start: "a"')),
        ({"structured_outputs": {"json_object": True}}, StructuredOutputsParams(json_object=True)),
        ({"guided_json": SCHEMA}, StructuredOutputsParams(json=TEXT)),
        ({"guided_json": TEXT}, StructuredOutputsParams(json=TEXT)),
        ({"guided_regex": "a+"}, StructuredOutputsParams(regex="a+")),
        ({"guided_choice": ["a"]}, StructuredOutputsParams(choice=["a"])),
        ({"guided_grammar": 'start: "a"'}, StructuredOutputsParams(grammar='start: "a"')),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, StructuredOutputsParams(regex="a")),
    ],
)
def test_every_name_means_the_same(fields: dict[str, Any], expected: StructuredOutputsParams | None) -> None:
    assert make_structured_outputs(body(**fields)) == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "a" * 5000}, "guided_regex"),
        ({"guided_choice": [""]}, "guided_choice"),
        ({"guided_grammar": "x" * 20_000}, "guided_grammar"),
        ({"guided_json": {"enum": ["x" * 200_000]}}, "guided_json"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_what_is_wrong_is_named_as_the_client_wrote_it(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_structured_outputs(body(**fields))
    assert caught.value.param == param


def test_the_field_that_errors_from_further_in_are_about() -> None:
    assert field_of(body()) is None
    assert field_of(body(guided_choice=["a"])) == "guided_choice"
    assert field_of(body(response_format={"type": "json_object"})) == "response_format"
