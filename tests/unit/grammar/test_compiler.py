import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.grammar import compiler as compiler_module
from roundhouse.grammar.compiler import GrammarCompiler
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import StructuredOutputsParams
from tests.support.byte_vocabulary import EOS, byte_compiler, byte_vocabulary

SCHEMA = (
    '{"type":"object","properties":{"name":{"type":"string","maxLength":8},"tags":{"type":"array","items":'
    '{"enum":["a","bc"]}},"age":{"type":"integer"}},"required":["name","age"],"additionalProperties":false}'
)
GRAMMARS = [
    StructuredOutputsParams(json=SCHEMA),
    StructuredOutputsParams(json_object=True),
    StructuredOutputsParams(regex="[a-c]+(x|yz)*[0-9]{2,5}"),
    StructuredOutputsParams(choice=["red", "redder", "green"]),
    StructuredOutputsParams(grammar='start: item ("," item)*\nitem: "(" start ")" | /[0-9]+/'),
]
COMPILER = byte_compiler()


def accepts(params: StructuredOutputsParams, text: str) -> bool:
    matcher = COMPILER.compile(params)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def allowed(mask: bytes) -> list[int]:
    bits = int.from_bytes(mask, "little")
    return [token_id for token_id in range(256) if bits >> token_id & 1]


@given(params=st.sampled_from(GRAMMARS), data=st.data())
def test_a_matcher_rebuilt_from_the_outputs_gives_the_masks_of_the_one_that_ran_through(
    params: StructuredOutputsParams, data: st.DataObject
) -> None:
    through = COMPILER.compile(params)
    outputs: list[int] = []
    masks = [through.compute_bitmask()]
    while len(outputs) < 40 and not through.is_stopped():
        token_id = data.draw(st.sampled_from(allowed(masks[-1])))
        assert through.consume_token(token_id)
        outputs.append(token_id)
        masks.append(through.compute_bitmask())
    # Another engine has nothing of what this one compiled.
    elsewhere = byte_compiler()
    for k in range(len(outputs) + 1):
        rebuilt = elsewhere.compile(params)
        assert rebuilt.consume_tokens(outputs[:k])
        for position in range(k, len(outputs)):
            assert rebuilt.compute_bitmask() == masks[position]
            assert rebuilt.consume_token(outputs[position])
        assert (rebuilt.compute_bitmask(), rebuilt.is_stopped()) == (masks[-1], through.is_stopped())


@pytest.mark.parametrize(
    ("params", "good", "bad"),
    [
        (GRAMMARS[0], '{"name": "Ada", "tags": ["bc"], "age": 36}', '{"name": "Ada"}'),
        (GRAMMARS[1], '{"a": [1, {"b": null}]}', "[1]"),
        (GRAMMARS[2], "abcxyz123", "abcx1"),
        (GRAMMARS[3], "redder", "rede"),
        (GRAMMARS[4], "1,(2,3)", "1,(2"),
        (StructuredOutputsParams(grammar='root ::= "ja" | "nein"'), "nein", "no"),
        (StructuredOutputsParams(json='{"$ref":"#/$defs/n","$defs":{"n":{"type":"integer"}}}'), "7", '"7"'),
    ],
)
def test_what_a_grammar_lets_through(params: StructuredOutputsParams, good: str, bad: str) -> None:
    assert (accepts(params, good), accepts(params, bad)) == (True, False)


@given(st.lists(st.text(min_size=1).filter(lambda text: "\x00" not in text and text.isprintable()), min_size=1))
def test_a_choice_is_taken_letter_by_letter(choice: list[str]) -> None:
    for text in choice:
        assert accepts(StructuredOutputsParams(choice=choice), text)
    assert not accepts(StructuredOutputsParams(choice=choice), "".join(choice) + "!")


def test_the_end_may_come_only_where_the_grammar_ends() -> None:
    matcher = COMPILER.compile(StructuredOutputsParams(regex="[0-9]{1,2}"))
    assert EOS not in allowed(matcher.compute_bitmask())
    matcher.consume_token(ord("1"))
    assert allowed(matcher.compute_bitmask()) == [EOS, *range(ord("0"), ord("9") + 1)]
    matcher.consume_token(ord("1"))
    assert allowed(matcher.compute_bitmask()) == [EOS]
    assert matcher.is_stopped()


def test_a_matcher_is_its_callers_own() -> None:
    params = StructuredOutputsParams(regex="ab")
    first, second = COMPILER.compile(params), COMPILER.compile(params)
    first.consume_token(ord("a"))
    assert (allowed(first.compute_bitmask()), allowed(second.compute_bitmask())) == ([ord("b")], [ord("a")])


def test_the_last_ones_are_kept_up_to_a_number_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_COMPILED", 2)
    compiler = GrammarCompiler(byte_vocabulary)
    for regex in ("a", "b", "a", "c"):
        compiler.compile(StructuredOutputsParams(regex=regex))
    assert len(compiler._compiled) == 2
    monkeypatch.setattr(compiler_module, "MAX_COMPILED_BYTES", 1)
    compiler.compile(StructuredOutputsParams(regex="d"))
    assert len(compiler._compiled) == 1
    assert compiler._num_bytes == sum(map(len, compiler._compiled))


def test_a_grammar_that_is_none_is_refused_and_not_kept() -> None:
    compiler = byte_compiler()
    for params in (
        StructuredOutputsParams(regex="["),
        StructuredOutputsParams(json='{"type":"nothing"}'),
        StructuredOutputsParams(json='{"type":'),
        StructuredOutputsParams(json="[]"),
        StructuredOutputsParams(json='{"type":"integer","minimum":3,"maximum":2}'),
        StructuredOutputsParams(grammar="start: missing"),
        StructuredOutputsParams(grammar="root ::= missing"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            compiler.compile(params)
        assert caught.value.param == "structured_outputs"
    assert not compiler._compiled
