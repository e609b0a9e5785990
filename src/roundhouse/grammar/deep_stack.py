"""Runs a call on a thread with a deep stack: llguidance recurses over rules, and an overflow would end the process.

Only what is touched of a stack takes memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

STACK_BYTES = 512 * 2**20
"""A chain of 4,000 rules overflows 8 MiB, and the largest grammar has room for 4,000."""

_lock = threading.Lock()


def call_with_deep_stack(function: Callable[[], T]) -> T:
    """What `function` returns or raises. Other threads run meanwhile where it lets them."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    with _lock:  # the size is the process's
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="grammar", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
