"""What all state machines share: a table of states and events, and a story that the error tells.

A machine's file reads: rules, states, events, effects, `TABLE`, then `on(event, now) -> effects`.
The idea of events in, effects out, with the story in the error, is dask.distributed's worker state machine; tables that
are the truth are h11's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)

STORY_LENGTH = 32


class InvalidTransition(Exception):
    """A pair outside the table: a bug of ours, told with the machine's last events. The machine is unchanged."""

    def __init__(self, name: str, state: Enum, event: type, story: tuple[str, ...]) -> None:
        super().__init__(f"{name}: {event.__name__} in state {state.name}; story: {' → '.join(story) or 'none'}")
        self.name, self.state, self.event, self.story = name, state, event, story


class Machine(Generic[S]):
    """The current state of one `name`, moved along `table` = {(state, event type): next state}."""

    __slots__ = ("_story", "_table", "name", "state")

    def __init__(self, name: str, table: Mapping[tuple[S, type], S], state: S) -> None:
        self.name = name
        self.state = state
        self._table = table
        self._story: deque[str] = deque(maxlen=STORY_LENGTH)

    def move(self, event: type) -> tuple[S, S]:
        """Takes the transition of `event` and returns (state before, state after). Raises `InvalidTransition`."""
        before = self.state
        after = self._table.get((before, event))
        if after is None:
            raise InvalidTransition(self.name, before, event, tuple(self._story))
        self._story.append(f"{event.__name__}: {before.name} to {after.name}")
        self.state = after
        return before, after

    def allows(self, event: type) -> bool:
        return (self.state, event) in self._table

    @property
    def story(self) -> tuple[str, ...]:
        """The last `STORY_LENGTH` transitions, oldest first."""
        return tuple(self._story)
