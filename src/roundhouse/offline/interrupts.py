"""Ctrl-C between two steps and never inside one: a step that is cut off leaves scheduler and runner disagreeing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """Inside the block SIGINT waits until what is yielded is called, which raises `KeyboardInterrupt` then; a second
    SIGINT does not wait. Where SIGINT is somebody else's already, or in another thread than the main one, nothing is
    changed.
    """
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield lambda: None
        return
    asked = False

    def on_interrupt(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    def raise_if_asked() -> None:
        if asked:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield raise_if_asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
