import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.frontend.prefix_index import (
    MAX_HASHED_BLOCKS,
    MAX_STALE_BITS,
    KnownPrefix,
    PrefixIndex,
    PromptHashes,
)
from roundhouse.protocol.block_hash import BlockHash, extend_chain, root_hash
from roundhouse.protocol.identity import SessionId
from tests.support.mesh import request

A, B, C = SessionId(7), SessionId(2**60), SessionId(9)


def chain(word: str) -> list[BlockHash]:
    """One block for each letter, named by all letters up to it."""
    return [BlockHash(word[: end + 1].encode()) for end in range(len(word))]


@pytest.mark.parametrize("block_size", [1, 16, 32])
def test_hashes_are_those_that_the_engine_gives_the_blocks(block_size: int) -> None:
    prompt, outputs = list(range(100)), list(range(50))
    hashes = PromptHashes(request(prompt=prompt, cache_salt="s", lora_name="l"))
    expected: list[BlockHash] = []
    extend_chain(expected, root_hash(cache_salt="s", lora_name="l"), prompt, block_size)
    assert hashes.of(block_size) == expected
    extend_chain(expected, root_hash(cache_salt="s", lora_name="l"), prompt + outputs, block_size)
    assert hashes.with_outputs(block_size, outputs) == expected
    assert hashes.of(block_size) == expected[: 100 // block_size]


def test_a_long_prompt_is_hashed_up_to_a_bound() -> None:
    hashes = PromptHashes(request(prompt=list(range(2 * MAX_HASHED_BLOCKS + 1))))
    expected: list[BlockHash] = []
    extend_chain(expected, root_hash(), list(range(2 * MAX_HASHED_BLOCKS)), 2)
    assert hashes.of(2) == hashes.with_outputs(2, [1] * 100) == expected
    assert hashes.of(1) == PromptHashes(request(prompt=list(range(MAX_HASHED_BLOCKS)))).of(1)


def test_each_engine_has_what_it_was_sent_from_the_start_on() -> None:
    index = PrefixIndex()
    index.record(A, chain("abcd"))
    index.record(B, chain("abx"))
    assert index.find(chain("abcde"), [B, A, C]).num_cached == [2, 4, 0]
    assert index.find(chain("xb"), [A, B]) == KnownPrefix([0, 0], chain("x")[0])
    assert index.find([], [A]) == KnownPrefix([0], None)
    assert index.find(chain("ab"), []).num_cached == []


def test_the_anchor_is_the_first_block_behind_the_last_parting_of_prompts() -> None:
    index = PrefixIndex()
    index.record(A, chain("sys1"))
    index.record(A, chain("sys123"))
    assert index.find(chain("sys1234"), [A]).anchor == b"s", "one conversation that grows parts nowhere"
    index.record(B, chain("sysXY"))
    assert index.find(chain("sys1234"), [A]).anchor == b"sys1"
    assert index.find(chain("sysXYZ"), [B]).anchor == b"sysX"
    assert index.find(chain("sysNEW"), [A]).anchor == b"sysN"
    assert index.find(chain("sys"), [A]).anchor is None
    index.record(B, chain("sys12Q"))
    assert index.find(chain("sys1234"), [A]).anchor == b"sys123", "the same conversation, continued in two ways"


def test_frontends_that_saw_different_turns_find_the_same_anchor() -> None:
    one, other = PrefixIndex(), PrefixIndex()
    for word in ("sys1", "sys12", "sys7"):
        one.record(A, chain(word))
    for word in ("sys8", "sys9"):
        other.record(B, chain(word))
    assert one.find(chain("sys123"), [A]).anchor == other.find(chain("sys123"), [B]).anchor == b"sys1"


def test_a_lost_engine_is_forgotten_and_one_that_comes_knows_nothing() -> None:
    index = PrefixIndex()
    index.record(A, chain("ab"))
    index.record(B, chain("ab"))
    index.forget(A)
    index.forget(C)
    assert index.find(chain("ab"), [A, B]).num_cached == [0, 2]
    index.record(C, chain("x"))
    assert index.find(chain("ab"), [A, B, C]).num_cached == [0, 2, 0]


def test_engines_come_and_go_without_end() -> None:
    index = PrefixIndex()
    index.record(A, chain("stays"))
    for number in range(5 * MAX_STALE_BITS):
        session_id = SessionId(1000 + number)
        assert index.find(chain("stays"), [A, session_id]).num_cached == [5, 0]
        index.record(session_id, chain("st"))
        index.record(session_id, chain(f"{number}x"))
        assert index.find(chain("stays"), [A, session_id]).num_cached == [5, 2]
        index.forget(session_id)
    assert len(index) <= 5 + (MAX_STALE_BITS + 1) * 4, "what only lost engines had is dropped in the end"


def test_what_was_sent_the_longest_ago_is_forgotten_first_and_its_end_before_its_start() -> None:
    index = PrefixIndex(max_entries=6)
    index.record(A, chain("abc"))
    index.record(A, chain("xyz"))
    index.record(A, chain("pq"))
    assert len(index) == 6
    known = [index.find(chain(word), [A]).num_cached for word in ("abc", "xyz", "pq")]
    assert known == [[1], [3], [2]]
    index.record(A, chain("a"))
    index.record(A, chain("r"))
    assert [index.find(chain(word), [A]).num_cached for word in ("abc", "xyz", "pq")] == [[1], [2], [2]]


WORDS = st.text("abc", max_size=5)
ENGINES = st.sampled_from([A, B, C])


@given(st.lists(st.one_of(st.tuples(ENGINES, WORDS), st.tuples(ENGINES, st.none())), max_size=20), WORDS)
def test_it_is_a_set_of_prefixes_for_each_engine(events: list[tuple[SessionId, str | None]], word: str) -> None:
    index = PrefixIndex()
    known: dict[SessionId, set[BlockHash]] = {A: set(), B: set(), C: set()}
    for session_id, sent in events:
        if sent is None:
            index.forget(session_id)
            known[session_id] = set()
        else:
            index.record(session_id, chain(sent))
            known[session_id] |= set(chain(sent))
    expected = [sum(block in known[session_id] for block in chain(word)) for session_id in (C, A, B)]
    assert index.find(chain(word), [C, A, B]).num_cached == expected
