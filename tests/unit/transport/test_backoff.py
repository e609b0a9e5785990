from roundhouse.transport.backoff import Backoff


def test_it_doubles_up_to_the_longest_and_starts_again() -> None:
    backoff = Backoff(lambda: 1.0, first_s=0.5, longest_s=3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.5


def test_a_fleet_spreads_over_half_of_each_wait() -> None:
    assert Backoff(lambda: 0.0, first_s=2.0, longest_s=9.0).next_s() == 1.0
    assert Backoff(lambda: 0.5, first_s=2.0, longest_s=9.0).next_s() == 1.5
