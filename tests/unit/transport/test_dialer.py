from roundhouse.transport.address import FrontendAddress, TcpAddress
from roundhouse.transport.dialer import FIRST_S, LONGEST_S, Dialer

A, B, C = (TcpAddress(f"10.0.0.{number}", 5570) for number in (1, 2, 3))
NAME = TcpAddress("frontends", 5570)


def new_dialer(*static: FrontendAddress) -> Dialer:
    return Dialer(static, lambda: 1.0, 0.0)


def test_static_addresses_are_due_at_once_and_held_until_closed() -> None:
    dialer = new_dialer(A, B)
    assert dialer.due(0.0) == [A, B]
    assert dialer.due(100.0) == []
    assert dialer.next_due() is None
    dialer.closed(A, was_refused=False, now=100.0)
    assert dialer.next_due() == 100.0 + FIRST_S
    assert dialer.due(100.0) == []
    assert dialer.due(100.0 + FIRST_S) == [A]


def waits(dialer: Dialer, *, was_refused: bool, times: int) -> list[float]:
    found: list[float] = []
    now = 0.0
    for _ in range(times):
        assert dialer.due(now) == [A]
        dialer.closed(A, was_refused=was_refused, now=now)
        due = dialer.next_due()
        assert due is not None
        found.append(round(due - now, 6))
        now = due
    return found


def test_one_that_is_not_there_is_asked_for_ever_at_most_once_a_second() -> None:
    assert waits(new_dialer(A), was_refused=False, times=8) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_one_that_refuses_is_asked_less_often() -> None:
    assert waits(new_dialer(A), was_refused=True, times=6) == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_admission_starts_the_waits_again() -> None:
    dialer = new_dialer(A)
    waits(dialer, was_refused=False, times=5)
    dialer.due(1000.0)
    dialer.admitted(A, "frontend-1")
    dialer.closed(A, was_refused=False, now=1000.0)
    assert dialer.next_due() == 1000.0 + FIRST_S


def test_a_name_brings_all_its_addresses() -> None:
    dialer = new_dialer()
    assert dialer.next_due() is None
    dialer.set_source(NAME, [A, B], 5.0)
    assert dialer.due(5.0) == [A, B]
    dialer.set_source(NAME, [B, C], 6.0)
    assert dialer.due(6.0) == [C]


def test_a_name_that_vanishes_never_ends_a_live_session_but_no_new_one_begins() -> None:
    dialer = new_dialer()
    dialer.set_source(NAME, [A], 0.0)
    assert dialer.due(0.0) == [A]
    dialer.set_source(NAME, [], 1.0)
    dialer.closed(A, was_refused=False, now=2.0)
    assert (dialer.next_due(), dialer.due(100.0)) == (None, [])
    dialer.set_source(NAME, [A], 200.0)
    assert dialer.due(200.0) == [A]


def test_frontends_that_another_one_names_are_tried_while_it_lives() -> None:
    dialer = new_dialer(A)
    dialer.due(0.0)
    dialer.admitted(A, "frontend-1")
    dialer.set_source(1, [B], 1.0)
    assert dialer.due(1.0) == [B]
    dialer.closed(B, was_refused=False, now=2.0)
    dialer.set_source(1, [], 3.0)
    assert dialer.due(10.0) == []


def test_the_same_frontend_by_another_name_is_left_alone() -> None:
    dialer = new_dialer(A, B)
    dialer.due(0.0)
    dialer.admitted(A, "frontend-1")
    dialer.admitted(B, "frontend-1")
    dialer.closed(A, was_refused=True, now=1.0)
    assert dialer.due(5.0) == []
    assert dialer.next_due() == 5.0 + LONGEST_S
    dialer.closed(B, was_refused=False, now=6.0)
    assert dialer.due(7.0) == [A]
