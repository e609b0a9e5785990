"""`StructuredOutputsParams` → a grammar as llguidance takes it. Pure; bounds what the library would take long over."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from roundhouse.protocol import limits
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import StructuredOutputsParams

WHITESPACE = r"[ \n\r\t]{1,64}"
"""Between the tokens of JSON: small models are fond of it and would go on with it to the end of the context."""

ANY_OBJECT = '{"type":"object"}'

_OVERRIDES: Any = {"whitespace_pattern": WHITESPACE}


def grammar_source(params: StructuredOutputsParams) -> str:
    """Raises `InvalidRequest`. What it returns may still be no grammar: the compiler tells."""
    if params.json_object:
        return LLMatcher.grammar_from_json_schema(ANY_OBJECT, overrides=_OVERRIDES)
    if params.json is not None:
        return LLMatcher.grammar_from_json_schema(_checked_schema(params.json), overrides=_OVERRIDES)
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(params.regex)
    if params.choice is not None:
        return LLMatcher.grammar_from_regex("|".join(map(re.escape, params.choice)))
    assert params.grammar is not None, "verified params have one of them"
    return LLMatcher.grammar_from_lark(_as_lark(params.grammar))


def invalid_grammar(what: str) -> InvalidRequest:
    return InvalidRequest(what, param="structured_outputs")


def _checked_schema(text: str) -> str:
    """The schema, written anew: nothing but JSON reaches the library."""
    try:
        schema = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_grammar(f"the schema is not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise invalid_grammar("a schema is a JSON object")
    _check_patterns(schema)
    return msgspec.json.encode(schema).decode()


def _check_patterns(schema: dict[str, Any]) -> None:
    num_patterns = 0
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(value)
            continue
        if not isinstance(value, dict):
            continue
        waiting.extend(value.values())
        patterns = list(value["patternProperties"]) if isinstance(value.get("patternProperties"), dict) else []
        if isinstance(value.get("pattern"), str):
            patterns.append(value["pattern"])
        num_patterns += len(patterns)
        if any(len(pattern.encode()) > limits.MAX_REGEX_BYTES for pattern in patterns):
            raise invalid_grammar(f"a pattern has at most {limits.MAX_REGEX_BYTES} bytes")
    if num_patterns > limits.MAX_SCHEMA_PATTERNS:
        raise invalid_grammar(f"a schema holds at most {limits.MAX_SCHEMA_PATTERNS} patterns")


def _as_lark(text: str) -> str:
    try:
        return any_to_lark(text)
    except Exception as error:  # the converter raises nothing narrower
        raise invalid_grammar(f"not a grammar: {' '.join(str(error).split())[:200]}") from None
