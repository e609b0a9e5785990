"""Stop strings in a growing text, looked for in new characters only. Places count characters from the text's start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """`text[start:end]` is `stop`."""

    stop: str
    start: int
    end: int


class StopScanner:
    """Remembers of the text no more than a match can still need: one character less than the longest stop string."""

    __slots__ = ("_length", "_max_overlap", "_stops", "_tail")

    def __init__(self, stops: Sequence[str]) -> None:
        assert stops and all(stops)
        self._stops = stops
        self._max_overlap = max(map(len, stops)) - 1
        self._tail = ""
        self._length = 0

    @property
    def max_overlap(self) -> int:
        """How many characters at the end of the text may turn out to be part of a match."""
        return self._max_overlap

    def skip(self, text: str) -> None:
        """Appends text that no match may touch; the scan starts behind it."""
        self._length += len(text)
        self._tail = ""

    def scan(self, text: str) -> StopMatch | None:
        """Appends `text` and returns the match that completes first in it; of several, the first in the list."""
        window = self._tail + text
        best: StopMatch | None = None
        offset = self._length - len(self._tail)
        for stop in self._stops:
            start = window.find(stop, max(0, len(self._tail) - len(stop) + 1))
            if start >= 0 and (best is None or offset + start + len(stop) < best.end):
                best = StopMatch(stop, offset + start, offset + start + len(stop))
        self._length += len(text)
        self._tail = window[-self._max_overlap :] if self._max_overlap else ""
        return best
