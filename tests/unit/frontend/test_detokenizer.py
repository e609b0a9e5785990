"""What is shown of a text while a stop string may still come, and which tokens go with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.frontend.detokenizer import Detokenizer, Shown
from roundhouse.protocol.sampling import SamplingParams
from tests.support.small_tokenizers import byte_level, ids_of

TOKENIZER = byte_level()
UNITS = [*([unit] for unit in ids_of(TOKENIZER, "ABC", "DEF", "GHI", "J", "DEFGHIJ", "CDEF", " ", "a", "🙂"))]
UNITS.append(ids_of(TOKENIZER, b"\xf0\x9f", b"\x99\x82"))


def run(token_ids, *, batches=1, ends_with_stop_token=False, **params):
    """The updates until the text ends, given `batches` tokens at a time."""
    detokenizer = Detokenizer(TOKENIZER, [], SamplingParams(max_tokens=None, **params))
    shown: list[Shown] = []
    for start in range(0, len(token_ids), batches):
        last = start + batches >= len(token_ids)
        shown.append(
            detokenizer.update(
                token_ids[start : start + batches],
                finished=last,
                ends_with_stop_token=last and ends_with_stop_token,
            )
        )
        if shown[-1].stop is not None:
            break
    return shown


def text_of(shown):
    return "".join(piece.text for piece in shown)


def num_tokens_of(shown):
    return sum(piece.num_tokens for piece in shown)


def test_without_stop_strings_every_token_is_shown_at_once():
    assert run(ids_of(TOKENIZER, "Hello", b"\xf0\x9f", b"\x99\x82")) == [
        Shown("Hello", 1),
        Shown("", 1),
        Shown("🙂", 1),
    ]


def test_a_stop_string_never_leaks_and_takes_its_tokens_along():
    shown = run(ids_of(TOKENIZER, "ABC", "DEF", "GHI", "J"), stop=["DEFGHIJ"])
    assert shown == [Shown("", 0), Shown("", 0), Shown("ABC", 1), Shown("", 0, "DEFGHIJ")]


def test_a_token_with_kept_text_in_it_is_kept():
    assert run(ids_of(TOKENIZER, "AB"[0], "CDEF", "GHI"), stop=["DEF"])[-1] == Shown("AC", 2, "DEF")


def test_included_the_text_ends_exactly_with_the_stop_string():
    shown = run(ids_of(TOKENIZER, "ABC", "DEFGHIJ", " "), batches=3, stop=["DEFG"], include_stop_str_in_output=True)
    assert shown == [Shown("ABCDEFG", 2, "DEFG")]


def test_what_was_held_back_comes_at_the_end():
    assert run(ids_of(TOKENIZER, "ABC", "DEF"), stop=["DEFGHIJ"]) == [Shown("", 0), Shown("ABCDEF", 2)]


def test_a_stop_string_may_begin_behind_min_tokens_only():
    ids = ids_of(TOKENIZER, "\n\n", "a", "\n\n", "a", "\n\n")
    shown = run(ids, stop=["\n"], min_tokens=3)
    assert (text_of(shown), num_tokens_of(shown), shown[-1].stop) == ("\n\na\n\na", 4, "\n")
    assert run(ids, stop=["\n"], min_tokens=3, batches=5) == [Shown("\n\na\n\na", 4, "\n")]
    assert text_of(run(ids, stop=["\n"], min_tokens=5)) == "\n\na\n\na\n\n"


@pytest.mark.parametrize(("include", "text"), [(False, "Hello"), (True, "Hello.")])
def test_the_text_of_a_stop_token(include, text):
    shown = run(ids_of(TOKENIZER, "Hello", "."), ends_with_stop_token=True, include_stop_str_in_output=include)
    assert (text_of(shown), num_tokens_of(shown)) == (text, 2)


@given(
    units=st.lists(st.sampled_from(UNITS), min_size=1, max_size=20),
    stop=st.lists(st.sampled_from(["DEFGHIJ", "FG", "C ", "🙂", "aa", " "]), max_size=2),
    include=st.booleans(),
    batches=st.integers(1, 5),
)
def test_text_and_tokens_belong_together_however_they_arrive(units, stop, include, batches):
    token_ids = [token_id for unit in units for token_id in unit]
    shown = run(token_ids, batches=batches, stop=stop, include_stop_str_in_output=include)
    whole = text_of(run(token_ids))
    stops = [text for text in stop if text in whole]
    if stops:
        end, _, found = min((whole.find(text) + len(text), stop.index(text), text) for text in stops)
        whole = whole[: end if include else end - len(found)]
        assert shown[-1].stop == found
    assert text_of(shown) == whole
    kept = token_ids[: num_tokens_of(shown)]
    if not stops:
        assert kept == token_ids
    else:
        # The kept tokens are the fewest that make the kept text.
        assert text_of(run(kept)).startswith(whole)
        assert not kept or len(text_of(run(kept[:-1]))) < len(whole)
    seen = ""
    for piece in shown[:-1]:
        seen += piece.text
        assert whole.startswith(seen)


def test_an_update_costs_the_same_however_long_the_text_is():
    """The state holds no more than a stop string can still need."""
    detokenizer = Detokenizer(TOKENIZER, [], SamplingParams(stop=["DEFGHIJ"], max_tokens=None))
    token_ids = ids_of(TOKENIZER, "ABC")
    for _ in range(5000):
        detokenizer.update(token_ids)
    hold_back = detokenizer._hold_back
    assert hold_back is not None
    assert len(hold_back._text) <= 6
    assert len(hold_back._scanner._tail) <= 6
    assert len(hold_back._ends) <= 6
