from hypothesis import given
from hypothesis import strategies as st

from roundhouse.frontend.balancer import LOAD_BOUND, EngineLoad, choose
from roundhouse.protocol.block_hash import BlockHash
from roundhouse.protocol.identity import EngineIndex, SessionId


def load(number: int, **changes: float) -> EngineLoad:
    fields = {
        "num_reported": 0,
        "num_waiting": 0,
        "num_sent_since": 0,
        "num_inflight": 0,
        "kv_cache_usage": 0.0,
        "max_num_seqs": 64,
    }
    return EngineLoad(SessionId(number + 10), EngineIndex(number), f"engine-{number}", **(fields | changes))  # type: ignore[arg-type]


def test_nobody_there() -> None:
    assert choose([]) is None
    assert choose([], data_parallel_rank=0) is None


def test_the_least_loaded_one() -> None:
    assert choose([load(0, num_reported=5), load(1, num_reported=4), load(2, num_reported=6)]) == 11


def test_what_was_sent_since_the_report_counts() -> None:
    assert choose([load(0, num_reported=1, num_sent_since=5), load(1, num_reported=4)]) == 11


def test_own_requests_count_even_when_a_report_is_older() -> None:
    assert choose([load(0, num_inflight=5), load(1, num_reported=4)]) == 11


def test_a_bigger_engine_gets_more() -> None:
    assert choose([load(0, num_reported=10, max_num_seqs=16), load(1, num_reported=20, max_num_seqs=64)]) == 11


def test_a_full_cache_with_a_queue_weighs_more_than_a_few_requests() -> None:
    full = load(0, num_reported=10, num_waiting=5, kv_cache_usage=1.0)
    assert choose([full, load(1, num_reported=27)]) == 11
    assert choose([full, load(1, num_reported=29)]) == 10


def test_a_cache_that_a_few_long_requests_fill_counts_before_anything_waits() -> None:
    full = load(0, num_reported=2, kv_cache_usage=1.0)
    assert choose([full, load(1, num_reported=4)]) == 11
    assert choose([full, load(1, num_reported=6)]) == 10
    half_full = load(0, num_reported=2, kv_cache_usage=0.5)
    assert choose([half_full, load(1, num_reported=3)]) == 10


def test_equals_take_turns() -> None:
    loads = [load(0), load(1), load(2)]
    assert [choose(loads, turn=turn) for turn in range(6)] == [10, 11, 12, 10, 11, 12]


def test_the_one_behind_a_busy_one_gets_no_turn_twice() -> None:
    loads = [load(0, num_reported=1), load(1), load(2), load(3, num_reported=1)]
    assert [choose(loads, turn=turn) for turn in range(4)] == [11, 12, 11, 12]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5), st.floats(0, 0.5)), min_size=2, max_size=6),
    st.integers(0, 100),
)
def test_a_burst_between_two_reports_levels_the_engines(engines: list[tuple[int, int, float]], num_sent: int) -> None:
    """Nobody gets one more while another has less; so a new, empty engine catches up and is not swamped."""
    loads = [load(i, num_reported=a + b, num_waiting=b, kv_cache_usage=kv) for i, (a, b, kv) in enumerate(engines)]
    for turn in range(num_sent):
        chosen = choose(loads, turn=turn)
        loads = [each._replace(num_sent_since=each.num_sent_since + (each.session_id == chosen)) for each in loads]
    totals = [each.num_reported + each.num_sent_since for each in loads]
    assert sum(each.num_sent_since for each in loads) == num_sent
    assert all(total <= min(totals) + 1 for total, each in zip(totals, loads, strict=True) if each.num_sent_since)


def test_a_rank_pins() -> None:
    loads = [load(0), load(2, num_reported=60)]
    assert choose(loads, data_parallel_rank=2) == 12
    assert choose(loads, data_parallel_rank=1) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8), st.integers(0, 100))
def test_nobody_is_less_loaded_than_the_one_that_is_chosen(numbers: list[tuple[int, int]], turn: int) -> None:
    loads = [load(i, num_reported=a, num_sent_since=b) for i, (a, b) in enumerate(numbers)]
    chosen = next(item for item in loads if item.session_id == choose(loads, turn=turn))
    assert chosen.score == min(item.score for item in loads)


ANCHORS = [BlockHash(bytes([number] * 32)) for number in range(200)]


def test_the_one_that_has_the_prompt_gets_it_even_when_it_does_more() -> None:
    loads = [load(0, num_reported=8), load(1, num_reported=10, num_cached_tokens=800), load(2, num_reported=9)]
    assert choose(loads, num_prompt_tokens=1000) == 11


def test_at_the_bound_it_goes_elsewhere_whatever_is_cached() -> None:
    loads = [load(0, num_reported=8), load(1, num_reported=12, num_cached_tokens=1000)]
    assert choose(loads, num_prompt_tokens=1000) == 11  # 12 < 1.3 × 21 / 2
    loads = [load(0, num_reported=7), load(1, num_reported=12, num_cached_tokens=1000)]
    assert choose(loads, num_prompt_tokens=1000) == 11  # 12 < 1.3 × 20 / 2
    loads = [load(0, num_reported=6), load(1, num_reported=13, num_cached_tokens=1000)]
    assert choose(loads, num_prompt_tokens=1000) == 10  # 13 = 1.3 × 20 / 2


def test_a_few_cached_tokens_are_not_worth_a_wait() -> None:
    idle, busy = load(0), load(1, num_reported=1, num_cached_tokens=32)
    assert choose([idle, busy], num_prompt_tokens=40) == 10
    assert choose([idle, busy._replace(num_cached_tokens=800)], num_prompt_tokens=1000) == 11


def test_what_is_cached_decides_between_equals_without_an_anchor() -> None:
    loads = [load(0), load(1, num_cached_tokens=16), load(2)]
    assert [choose(loads, num_prompt_tokens=20, turn=turn) for turn in range(3)] == [11, 11, 11]


def test_frontends_agree_on_who_gets_a_conversation_whatever_numbers_they_give_the_engines() -> None:
    here = [load(number) for number in range(5)]
    there = [each._replace(session_id=SessionId(99 - each.engine_index)) for each in reversed(here)]
    names = {each.session_id: each.identity for each in [*here, *there]}
    chosen = [choose(here, num_prompt_tokens=500, anchor=anchor, turn=3) for anchor in ANCHORS]
    others = [choose(there, num_prompt_tokens=500, anchor=anchor, turn=4) for anchor in ANCHORS]
    assert [names[each] for each in chosen if each] == [names[each] for each in others if each]
    shares = [chosen.count(each.session_id) for each in here]
    assert min(shares) > 20, shares


def test_an_engine_that_leaves_moves_only_its_own_conversations() -> None:
    loads = [load(number) for number in range(5)]
    before = [choose(loads, num_prompt_tokens=500, anchor=anchor) for anchor in ANCHORS]
    after = [choose(loads[:4], num_prompt_tokens=500, anchor=anchor) for anchor in ANCHORS]
    assert [b for a, b in zip(after, before, strict=True) if a != b] == [14] * before.count(SessionId(14))


def test_what_is_known_outweighs_what_others_may_have_sent() -> None:
    for anchor in ANCHORS[:20]:
        loads = [load(0, num_reported=4), load(1, num_reported=4, num_cached_tokens=900), load(2, num_reported=4)]
        assert choose(loads, num_prompt_tokens=1000, anchor=anchor) == 11


def test_nobody_waits_at_a_busy_engine_for_a_guess_while_another_idles() -> None:
    loads = [load(0, num_reported=1), load(1), load(2, num_reported=1)]
    assert {choose(loads, num_prompt_tokens=4000, anchor=anchor) for anchor in ANCHORS} == {11}


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2000)), min_size=1, max_size=8),
    st.sampled_from([*ANCHORS[:20], None]),
    st.integers(0, 100),
)
def test_no_choice_breaks_the_bound(engines: list[tuple[int, int]], anchor: BlockHash | None, turn: int) -> None:
    loads = [load(i, num_reported=a, num_cached_tokens=cached) for i, (a, cached) in enumerate(engines)]
    session_id = choose(loads, num_prompt_tokens=2000, anchor=anchor, turn=turn)
    chosen = next(each for each in loads if each.session_id == session_id)
    assert chosen.num_reported < LOAD_BOUND * (sum(each.num_reported for each in loads) + 1) / len(loads)
