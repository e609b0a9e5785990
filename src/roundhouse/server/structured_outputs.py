"""What a body says of the form of its answer, under OpenAI's name, vLLM's and vLLM's older ones → one
`StructuredOutputsParams`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from roundhouse.protocol import limits
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import StructuredOutputsParams
from roundhouse.server.decode import decode_field
from roundhouse.server.schema import GenerationBody

FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)

MAX_FIELD_BYTES = 2 * limits.MAX_SCHEMA_BYTES


class _StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    json: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class _JsonSchema(msgspec.Struct, kw_only=True):
    schema: msgspec.Raw


class _ResponseFormat(msgspec.Struct, kw_only=True):
    type: str
    json_schema: _JsonSchema | None = None


_structured_decoder = msgspec.json.Decoder(_StructuredOutputs)
_response_decoder = msgspec.json.Decoder(_ResponseFormat)
_schema_decoder = msgspec.json.Decoder(str | dict[str, Any])


def field_of(body: GenerationBody) -> str | None:
    """The field that says what the answer has to be, for errors to name it."""
    return next((name for name in FIELDS if _is_there(getattr(body, name))), None)


def make_structured_outputs(body: GenerationBody) -> StructuredOutputsParams | None:
    """Checked, but not compiled. Raises `InvalidRequest` that names the field as the client wrote it."""
    found = {name: params for name in FIELDS if (params := _read(body, name)) is not None}
    if len(found) > 1:
        raise InvalidRequest(f"{' and '.join(found)}: only one of them can hold", param=list(found)[1])
    for name, params in found.items():
        try:
            params.verify()
        except InvalidRequest as error:
            message = error.message.removeprefix("structured_outputs: ")
            raise InvalidRequest(f"{name}: {message}", param=name) from None
        return params
    return None


def _read(body: GenerationBody, name: str) -> StructuredOutputsParams | None:
    value = getattr(body, name)
    if not _is_there(value):
        return None
    match name:
        case "response_format":
            return _of_response_format(value)
        case "structured_outputs":
            return _of_structured_outputs(value)
        case "guided_json":
            return StructuredOutputsParams(json=_schema_text(value, name))
        case _:
            return StructuredOutputsParams(**{name.removeprefix("guided_"): value})


def _of_response_format(raw: msgspec.Raw) -> StructuredOutputsParams | None:
    read = decode_field(_response_decoder, raw, param="response_format", max_bytes=MAX_FIELD_BYTES)
    assert read is not None
    match read.type:
        case "text":
            return None
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "json_schema" if read.json_schema is not None:
            return StructuredOutputsParams(json=_schema_text(read.json_schema.schema, "response_format"))
        case "json_schema":
            raise InvalidRequest("response_format: json_schema is needed", param="response_format.json_schema")
    raise InvalidRequest("response_format: type is text, json_object or json_schema", param="response_format.type")


def _of_structured_outputs(raw: msgspec.Raw) -> StructuredOutputsParams | None:
    read = decode_field(_structured_decoder, raw, param="structured_outputs", max_bytes=MAX_FIELD_BYTES)
    assert read is not None
    if bytes(raw).strip(b"{} \n\r\t") == b"":
        return None
    return StructuredOutputsParams(
        json=_schema_text(read.json, "structured_outputs") if _is_there(read.json) else None,
        regex=read.regex,
        choice=read.choice,
        grammar=read.grammar,
        json_object=bool(read.json_object),
    )


def _schema_text(raw: msgspec.Raw, name: str) -> str:
    """A schema as an object, or as vLLM also takes it, as text that holds one."""
    schema = decode_field(_schema_decoder, raw, param=name, max_bytes=MAX_FIELD_BYTES)
    if schema is None:
        raise InvalidRequest(f"{name}: a schema is needed", param=name)
    return schema if isinstance(schema, str) else bytes(raw).decode()


def _is_there(value: Any) -> bool:
    return bytes(value) not in (b"", b"null") if isinstance(value, msgspec.Raw) else value is not None
