from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from roundhouse.frontend.balancer import EngineLoad, choose
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
    return EngineLoad(SessionId(number + 10), EngineIndex(number), **(fields | changes))  # type: ignore[arg-type]


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
        loads = [replace(each, num_sent_since=each.num_sent_since + (each.session_id == chosen)) for each in loads]
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
