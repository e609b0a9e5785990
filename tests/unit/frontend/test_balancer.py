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
    assert choose([full, load(1, num_reported=20)]) == 11
    assert choose([full, load(1, num_reported=26)]) == 10


def test_equals_take_turns() -> None:
    loads = [load(0), load(1), load(2)]
    assert [choose(loads, turn=turn) for turn in range(6)] == [10, 11, 12, 10, 11, 12]


def test_a_rank_pins() -> None:
    loads = [load(0), load(2, num_reported=60)]
    assert choose(loads, data_parallel_rank=2) == 12
    assert choose(loads, data_parallel_rank=1) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8), st.integers(0, 100))
def test_nobody_is_less_loaded_than_the_one_that_is_chosen(numbers: list[tuple[int, int]], turn: int) -> None:
    loads = [load(i, num_reported=a, num_sent_since=b) for i, (a, b) in enumerate(numbers)]
    chosen = next(item for item in loads if item.session_id == choose(loads, turn=turn))
    assert chosen.score == min(item.score for item in loads)
