"""The scanner against looking at the whole text again after each piece."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roundhouse.frontend.stop_strings import StopMatch, StopScanner

texts = st.text(alphabet="abc", max_size=6)


def first_match(text, stops):
    """The stop string whose first occurrence ends first, by definition."""
    matches = [StopMatch(stop, text.find(stop), text.find(stop) + len(stop)) for stop in stops if stop in text]
    return min(matches, key=lambda match: match.end, default=None)


@given(pieces=st.lists(texts, max_size=8), stops=st.lists(texts.filter(bool), min_size=1, max_size=3))
@example(pieces=["a", "b", "c"], stops=["abc", "bc", "c"])
@example(pieces=["ab", "", "ab"], stops=["bab"])
def test_finds_what_a_search_of_the_whole_text_finds_in_the_same_piece(pieces, stops):
    scanner, text = StopScanner(stops), ""
    for piece in pieces:
        text += piece
        match = scanner.scan(piece)
        assert match == first_match(text, stops)
        if match is not None:
            return


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (["lo wor", "o w"], StopMatch("o w", 4, 7)),
        (["world", "ld"], StopMatch("world", 6, 11)),
        (["ld", "world"], StopMatch("ld", 9, 11)),
        (["xyz"], None),
    ],
    ids=["the one that completes first", "ties by the list", "ties by the list, turned", "none"],
)
def test_one_of_several(stops, expected):
    assert StopScanner(stops).scan("hello world") == expected


def test_a_match_begins_behind_skipped_text():
    scanner = StopScanner(["ab"])
    scanner.skip("ab a")
    assert scanner.scan("b") is None
    assert scanner.scan(" ab") == StopMatch("ab", 6, 8)
