"""Visits every state of a scenario up to a depth, breadth first, so that the first violation has the shortest trace.

`python -m tests.model.explore [SCENARIO …] [--deeper N] [--faults N]` goes as deep as one has the patience for.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tests.model.fair import run_fairly
from tests.model.scenarios import SCENARIOS
from tests.model.world import Event, Scenario, World


@dataclass(frozen=True, slots=True)
class Report:
    """num_states: different ones. num_events: that were played from them. num_rounds: of the fair scheduler, in all.

    kinds: of the events that were played. ends: how requests ended, in the exploration or in the fair runs from it.
    """

    name: str
    depth: int
    num_states: int
    num_events: int
    num_rounds: int
    kinds: frozenset[str]
    ends: frozenset[str]

    def __str__(self) -> str:
        return f"{self.name}: depth {self.depth}, {self.num_states} states, {self.num_events} events"


@dataclass(frozen=True, slots=True)
class _Trace:
    """The way to a state, last event first."""

    before: _Trace | None
    event: Event

    def events(self) -> list[Event]:
        events: list[Event] = []
        trace: _Trace | None = self
        while trace is not None:
            events.append(trace.event)
            trace = trace.before
        return events[::-1]


class Found(AssertionError):
    """A violation, told with the shortest trace to it."""

    def __init__(self, scenario: Scenario, events: list[Event], cause: Exception) -> None:
        super().__init__("\n".join(_story(scenario, events, cause)))
        self.events = events
        self.cause = cause


def explore(scenario: Scenario, progress: Callable[[int, int], None] = lambda depth, num_states: None) -> Report:
    """Every state within `scenario.depth` events of the start is judged, and can come to rest. Raises `Found`."""
    setup = setup_of(scenario)
    start = _play(scenario, setup, [])
    seen = {start.key()}
    known_good: set[int] = set()
    frontier: list[tuple[_Trace | None, list[Event]]] = [(None, start.enabled())]
    num_events = num_rounds = 0
    kinds: set[str] = set()
    ends: set[str] = set()
    for depth in range(1, scenario.depth + 1):
        reached: list[tuple[_Trace | None, list[Event]]] = []
        for trace, enabled in frontier:
            for event in enabled:
                here = _Trace(trace, event)
                num_events += 1
                kinds.add(event.kind)
                try:
                    world = _play(scenario, setup, here.events())
                    key = world.key()
                    if key in seen:
                        continue
                    seen.add(key)
                    if depth < scenario.depth:
                        reached.append((here, world.enabled()))
                    num_rounds += run_fairly(world, known_good)
                    ends.update(shown.ended for shown in world.frontend.shown.values())
                except Exception as error:
                    raise Found(scenario, here.events(), error) from error
        frontier = reached
        progress(depth, len(seen))
    return Report(scenario.name, scenario.depth, len(seen), num_events, num_rounds, frozenset(kinds), frozenset(ends))


def setup_of(scenario: Scenario) -> list[Event]:
    """The events before the first: engines dial, and what is sent arrives, until nothing is left; then a request."""
    events: list[Event] = []
    if not scenario.has_begun:
        return events
    world = World(scenario)

    def do(*some: Event) -> None:
        for event in some:
            world.apply(event)
            events.append(event)

    def settle() -> None:
        while deliveries := world.deliveries():
            do(deliveries[0])

    do(*(Event("dial", slot) for slot in scenario.slots))
    settle()
    do(Event("add", scenario.requests[0]))
    settle()
    return events


def _play(scenario: Scenario, setup: list[Event], events: list[Event]) -> World:
    """All but the last of `events` were judged before."""
    world = World(scenario)
    world.begin(setup)
    for event in events[:-1]:
        world.play(event)
    for event in events[-1:]:
        world.apply(event)
    return world


def _story(scenario: Scenario, events: list[Event], cause: Exception) -> Iterator[str]:
    yield f"scenario {scenario.name}, after {len(events)} events: {cause if str(cause) else repr(cause)}"
    world = World(scenario)
    world.begin(setup_of(scenario))
    for number, event in enumerate(events, 1):
        yield f"{number:3}. {world.describe(event)}"
        try:
            world.apply(event)
        except Exception:
            return
    yield "     then nothing breaks any more"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", default=[], metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--deeper", type=int, default=0, help="events more than the scenario's own depth")
    parser.add_argument("--faults", type=int, help="faults in one run; each scenario has its own default")
    options = parser.parse_args()
    for name in options.scenarios or SCENARIOS:
        scenario = SCENARIOS[name]
        scenario = replace(
            scenario,
            depth=scenario.depth + options.deeper,
            num_faults=scenario.num_faults if options.faults is None else options.faults,
        )
        began = time.process_time()

        def tell(depth: int, num_states: int, began: float = began) -> None:
            sys.stderr.write(f"  depth {depth}: {num_states} states, {time.process_time() - began:.1f} s\n")

        report = explore(scenario, tell)
        seconds = time.process_time() - began
        sys.stdout.write(f"{report} in {seconds:.1f} s of CPU\n")


if __name__ == "__main__":
    main()
