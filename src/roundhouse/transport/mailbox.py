"""`Mailbox`: how other threads reach one that sleeps in a poller."""

from __future__ import annotations

import os
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Any thread posts, one takes. The descriptor is readable while something waits. Linux: it is an eventfd."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def post(self, item: T) -> None:
        self._items.append(item)
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def take(self) -> list[T]:
        """Everything that waits, in order."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass
        return [self._items.popleft() for _ in range(len(self._items))]

    def close(self) -> None:
        """Later posts are kept and wake nobody."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
