"""`Inbox`: the engine's input queue. One thread puts, the busy loop takes.

Everything stays in order, and an ABORT stands a second time in a side list that the busy loop empties between the
model and the scheduler's update, so that an aborted request gives nothing more than it already has. Aborting twice is
harmless.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from roundhouse.protocol.messages import AbortRequests
from roundhouse.transport.items import Backlog, InputItem, Received

SIGNAL_CHECK_S = 0.5
"""Python runs a signal's handler in the main thread, between two bytecodes: a signal that comes just before the thread
begins to wait is not seen until the wait ends."""


@dataclass(frozen=True, slots=True)
class ShutdownAsked:
    """Put by the signal handler: `SimpleQueue.put` is reentrant, so a handler may call it in the middle of `get`."""


InboxItem = InputItem | ShutdownAsked


class Inbox:
    """`backlog` learns of every item that is taken."""

    def __init__(self, backlog: Backlog) -> None:
        self._items: SimpleQueue[InboxItem] = SimpleQueue()
        self._backlog = backlog
        self._aborts: deque[Received] = deque()

    def put(self, item: InboxItem) -> None:
        if isinstance(item, Received) and isinstance(item.message, AbortRequests):
            self._aborts.append(item)
        self._items.put(item)

    def get(self) -> InboxItem:
        """The next item; waits for it."""
        while True:
            try:
                return self._taken(self._items.get(timeout=SIGNAL_CHECK_S))
            except Empty:
                continue

    def drain(self) -> list[InboxItem]:
        """Everything that waits now, in order."""
        return [self._taken(self._items.get_nowait()) for _ in range(self._items.qsize())]

    def drain_aborts(self) -> list[Received]:
        """The aborts that came since they were last taken, here or in order."""
        return [self._aborts.popleft() for _ in range(len(self._aborts))]

    def _taken(self, item: InboxItem) -> InboxItem:
        # An abort taken in order leaves the side list, or it would hit a request that reuses the id after it.
        if self._aborts and self._aborts[0] is item:
            self._aborts.popleft()
        if not isinstance(item, ShutdownAsked):
            self._backlog.taken(item)
        return item
