from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.limits import MESSAGE_OVERHEAD_BYTES
from roundhouse.protocol.messages import AbortRequests
from roundhouse.transport.items import Backlog, BusyLoopStatus, Received, SessionLost, SessionOpened

ONE, TWO = ClientIndex(1), ClientIndex(2)
OVER = MESSAGE_OVERHEAD_BYTES


def test_the_time_in_a_step() -> None:
    status = BusyLoopStatus()
    assert status.step_s(100.0) == 0.0
    status.step_started = 90.0
    assert status.step_s(100.0) == 10.0
    status.step_started = None
    assert status.step_s(100.0) == 0.0


def test_a_backlog_is_what_was_put_and_not_taken_of_one_session() -> None:
    backlog = Backlog()
    assert backlog.put(ONE, 100) == 100 + OVER
    assert backlog.put(TWO, 7) == 7 + OVER
    assert backlog.put(ONE, 50) == 150 + 2 * OVER
    backlog.taken(Received(ONE, AbortRequests([]), 100))
    backlog.taken(SessionOpened(ONE))
    assert backlog.put(ONE, 0) == 50 + 2 * OVER


def test_a_session_that_is_over_leaves_nothing() -> None:
    backlog = Backlog()
    backlog.put(ONE, 100)
    backlog.taken(SessionLost(ONE))
    assert backlog.put(ONE, 1) == 1 + OVER
