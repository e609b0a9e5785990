"""Ctrl-C as a program finds it that was started from a terminal, however the tests were started."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def interrupts_raise() -> Iterator[None]:
    """A shell starts its background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
