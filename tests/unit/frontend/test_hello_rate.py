from hypothesis import given
from hypothesis import strategies as st

from roundhouse.frontend.hello_rate import HelloRate
from roundhouse.protocol.limits import MAX_ENGINES


def test_a_burst_and_then_the_rate() -> None:
    rate = HelloRate(per_s=2.0, burst=3)
    assert [rate.take("a", 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert [rate.take("a", now) for now in (10.4, 10.5, 10.6, 11.0)] == [False, True, False, True]
    assert rate.num_over == 4


def test_each_peer_has_its_own() -> None:
    rate = HelloRate(per_s=1.0, burst=1)
    assert [rate.take(peer, 0.0) for peer in ("a", "b", "a")] == [True, True, False]


def test_quiet_time_never_saves_more_than_a_burst() -> None:
    rate = HelloRate(per_s=1.0, burst=2)
    rate.take("a", 0.0)
    assert [rate.take("a", 1e9) for _ in range(3)] == [True, True, False]


def test_a_crowd_takes_no_memory_and_no_ones_turn() -> None:
    rate = HelloRate(per_s=1.0, burst=1)
    assert not [peer for peer in range(2 * MAX_ENGINES) if not rate.take(str(peer), 0.0)]
    assert len(rate._buckets) == MAX_ENGINES
    assert rate.take("0", 0.0)


@given(st.lists(st.floats(0, 100), max_size=200), st.floats(0.5, 10), st.integers(1, 20))
def test_never_more_than_burst_and_rate(moments: list[float], per_s: float, burst: int) -> None:
    rate = HelloRate(per_s=per_s, burst=burst)
    taken = [now for now in sorted(moments) if rate.take("a", now)]
    for first, start in enumerate(taken):
        for last in range(first, len(taken)):
            assert last - first + 1 <= burst + (taken[last] - start) * per_s + 1e-6
    assert rate.num_over == len(moments) - len(taken)
