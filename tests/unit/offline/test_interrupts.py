"""When SIGINT raises, and that its handler is put back."""

import signal
import threading

import pytest

from roundhouse.offline.interrupts import interrupts_between_steps


def test_an_interrupt_waits_until_it_is_asked_for() -> None:
    with interrupts_between_steps() as raise_if_asked:
        raise_if_asked()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            raise_if_asked()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_does_not_wait() -> None:
    with interrupts_between_steps():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_handler_of_somebody_else_stays() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with interrupts_between_steps() as raise_if_asked:
            signal.raise_signal(signal.SIGINT)
            raise_if_asked()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_another_thread_changes_nothing() -> None:
    seen: list[object] = []

    def run() -> None:
        with interrupts_between_steps() as raise_if_asked:
            raise_if_asked()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
