"""`RequestQueue`: requests without blocks, in the order in which they get some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from roundhouse.scheduler.config import Policy
from roundhouse.scheduler.request import Request

_Rank = tuple[float, ...]
_Entry = tuple[_Rank, Request]


def _is_new(request: Request) -> bool:
    """False for one that was preempted here, or under way elsewhere before it came."""
    return request.num_preemptions == 0 and request.num_output_tokens == 0


def _fcfs_rank(request: Request) -> _Rank:
    """Those that were under way by their original arrival, then new ones as they came: the arrival times of two
    frontends are two clocks.
    """
    if _is_new(request):
        return (1, request.arrival_index)
    return (0, request.arrival_time, request.arrival_index)


def _priority_rank(request: Request) -> _Rank:
    """The lowest value first; among equals those that were under way, then by arrival."""
    return (request.priority, _is_new(request), request.arrival_time, request.arrival_index)


_RANKS: dict[Policy, Callable[[Request], _Rank]] = {"fcfs": _fcfs_rank, "priority": _priority_rank}


class RequestQueue:
    """A heap in which a removed request's entry stays until it surfaces or is in the majority.

    `add` and `pop` take O(log n), `remove` O(1) amortized. A rank is unique, for it holds the arrival index.
    """

    def __init__(self, policy: Policy) -> None:
        self._rank = _RANKS[policy]
        self._heap: list[_Entry] = []
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def __iter__(self) -> Iterator[Request]:
        """In no order."""
        return (request for _, request in self._entries.values())

    def add(self, request: Request) -> None:
        """`request` takes its place by the policy. It may not be in the queue."""
        assert request.request_id not in self._entries, f"{request.request_id} is in the queue already"
        entry = (self._rank(request), request)
        self._entries[request.request_id] = entry
        heappush(self._heap, entry)

    def peek(self) -> Request:
        """The first one; the queue may not be empty."""
        while True:
            entry = self._heap[0]
            if self._is_current(entry):
                return entry[1]
            heappop(self._heap)

    def pop(self) -> Request:
        """Takes the first one."""
        request = self.peek()
        heappop(self._heap)
        del self._entries[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Takes `request` from wherever it stands."""
        del self._entries[request.request_id]
        if len(self._heap) > 2 * len(self._entries) + 16:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)

    def _is_current(self, entry: _Entry) -> bool:
        return self._entries.get(entry[1].request_id) is entry
