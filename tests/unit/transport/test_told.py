from roundhouse.transport.told import INTERVAL_S, MAX_PEERS, Told


def test_each_peer_once_a_minute() -> None:
    told = Told()
    assert [told.is_due("a", now) for now in (0.0, 1.0, INTERVAL_S, INTERVAL_S + 1)] == [True, False, True, False]
    assert told.is_due("b", 1.0)


def test_a_crowd_is_not_told_of_one_by_one() -> None:
    told = Told()
    assert sum(told.is_due(str(number), 0.0) for number in range(2 * MAX_PEERS)) == MAX_PEERS
    assert told.is_due("late", INTERVAL_S)
