"""What is meant to hold up or end a process is refused, or compiles, in bounded time; the process lives."""

import contextlib
import itertools
import json
import string
import time

import pytest

from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import SamplingParams, StructuredOutputsParams
from tests.support.byte_vocabulary import byte_compiler

BOUND_S = 5.0
"""Of processor time, on any machine: the worst takes a tenth of it."""

NAMES = ["r" + "".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=3)]


def chain(num_rules: int) -> str:
    """One rule inside the other: naive recursion over it overflows a stack."""
    names = NAMES[:num_rules]
    return f"start:{names[0]}\n" + "".join(f"{a}:{b}\n" for a, b in itertools.pairwise(names)) + f'{names[-1]}:"b"'


def refs(num_refs: int) -> str:
    defs = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(num_refs)}
    return json.dumps({"$ref": "#/$defs/0", "$defs": {**defs, str(num_refs): {"type": "integer"}}})


HOSTILE = {
    "deep schema": {"json": '{"items":' * 5000 + "{}" + "}" * 5000},
    "allOf of anyOf": {
        "json": json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"{i}_{j}": {"type": "null"}}} for j in range(9)]} for i in range(30)
                ]
            }
        )
    },
    "$ref to itself": {"json": '{"$ref":"#"}'},
    "$ref loop": {"json": '{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}'},
    "$ref loop beside siblings": {"json": '{"allOf":[{"$ref":"#"}],"type":"object"}'},
    "remote $ref": {"json": '{"$ref":"https://example.com/schema.json"}'},
    "$ref to a file": {"json": '{"$ref":"file:///etc/passwd"}'},
    "huge schema": {"json": json.dumps({"enum": [f"value {i}" for i in range(100_000)]})},
    "many patterns": {"json": json.dumps({"patternProperties": {f"^{i}x.*": {} for i in range(500)}})},
    "huge pattern": {"json": json.dumps({"pattern": "a*" * 10_000})},
    "float range": {"json": '{"type":"number","minimum":1e-300,"maximum":1e300}'},
    "deep regex": {"regex": "(" * 1500 + "a" + ")" * 1500},
    "lookahead": {"regex": "(?=a)b"},
    "long regex": {"regex": "a*" * 30_000},
    "million rules": {"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(10**6))},
    "doubling terminals": {
        "grammar": "start: R0\n" + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(40)) + '\nR40: "b"'
    },
    "terminal loop": {"grammar": "start: A\nA: B\nB: A"},
    "deep parentheses": {"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000},
    "import": {"grammar": '%import "/etc/passwd"\nstart: "a"'},
    "too many choices": {"choice": [str(i) for i in range(5000)]},
    "huge choices": {"choice": ["x" * 100_000]},
    "nothing": {},
    "two things": {"regex": "a", "choice": ["a"]},
    "surrogate": {"regex": "\ud800"},
}
HEAVY = {
    "nested repeats": {"regex": "(((((a{1,100}){1,100}){1,100}){1,100}){1,100}){1,100}"},
    "alternatives of stars": {"regex": "(a|a)*{1000}"},
    "ambiguous": {"grammar": 'start: s\ns: s s s | s s | "a" | ""'},
    "long chain of rules": {"grammar": chain(1700)},
    "long chain of $refs": {"json": refs(1500)},
    "many properties": {"json": json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(1800)}})},
    "exponential automaton": {"regex": ".*(a.{30}|b.{29}).*(c.{30}d)"},
    "nullable symbols": {"grammar": "start: " + '"a"* ' * 2500},
    "stars": {"regex": "a*" * 2000},
    "patternProperties": {"json": json.dumps({"patternProperties": {f"^{i}x.*": {} for i in range(64)}})},
    "large multiples": {"json": '{"type":"integer","multipleOf":999999937}'},
    "endless array": {"json": '{"type":"array","minItems":1000000,"items":{"type":"array","minItems":1000000}}'},
}


def attempt(fields: dict[str, object]) -> None:
    params = StructuredOutputsParams(**fields)  # pyright: ignore[reportArgumentType]
    SamplingParams(structured_outputs=params).verify()
    matcher = byte_compiler().compile(params)
    for _ in range(20):
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        tokens = [token_id for token_id in range(3, 256) if bits >> token_id & 1]
        if matcher.is_error() or matcher.is_stopped() or not tokens:
            return
        matcher.consume_token(tokens[len(tokens) // 2])


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_in_bounded_time(name: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        attempt(HOSTILE[name])
    assert caught.value.param == "structured_outputs"
    assert time.process_time() - started < BOUND_S


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_grammar_takes_bounded_time(name: str) -> None:
    started = time.process_time()
    with contextlib.suppress(InvalidRequest):
        attempt(HEAVY[name])
    assert time.process_time() - started < BOUND_S
