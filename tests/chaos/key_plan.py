"""What happens to the keys of a closed mesh in a chaos run, and when: drawn from the run's seed before it begins. Pure.

The frontends' key has a track of its own: an engine's key changes, or is revoked, in the middle of that rotation too.
"""

from __future__ import annotations

from random import Random

from tests.chaos.plan import CALM_AT_END_S, FIRST_S, Event, Kind

SERVER_ROTATION_S = (15.0, 25.0)
SERVER_GAP_S = (5.0, 15.0)
ENGINE_GAP_S = (4.0, 10.0)

_SECONDS = {Kind.REVOKE: (4.0, 22.0), Kind.ROTATE_ENGINE: (8.0, 15.0), Kind.BROKEN_LIST: (2.0, 6.0)}
"""From the first to the last deed: until a revoked engine gets a new key, an old key is retired, the list is whole.
A revoked engine is cut off at once, asks again, and is refused."""


def draw_key_events(seed: int, seconds: float, *, num_engines: int, num_frontends: int) -> list[Event]:
    """In order of time. Each rotation's retirement is there too."""
    random = Random(f"{seed}/keys")
    end_s = seconds - CALM_AT_END_S
    events = [*_on_the_server_key(random, end_s), *_on_the_others(random, end_s, num_engines, num_frontends)]
    return sorted(events, key=lambda event: event.at_s)


def _on_the_server_key(random: Random, end_s: float) -> list[Event]:
    events: list[Event] = []
    at_s = FIRST_S + random.uniform(0.0, SERVER_GAP_S[0])
    while (retired_at_s := at_s + random.uniform(*SERVER_ROTATION_S)) < end_s:
        events.append(Event(at_s, Kind.ROTATE_SERVER, None, None, 0.0))
        events.append(Event(retired_at_s, Kind.RETIRE_SERVER, None, None, 0.0))
        at_s = retired_at_s + random.uniform(*SERVER_GAP_S)
    return events


def _on_the_others(random: Random, end_s: float, num_engines: int, num_frontends: int) -> list[Event]:
    """Every kind once, in any order, then every kind once more, and so on."""
    events: list[Event] = []
    at_s = FIRST_S
    while True:
        for kind in random.sample(list(_SECONDS), len(_SECONDS)):
            lasts_s = random.uniform(*_SECONDS[kind])
            if at_s + lasts_s >= end_s:
                return events
            engine, frontend = random.randrange(num_engines), random.randrange(num_frontends)
            match kind:
                case Kind.BROKEN_LIST:
                    events.append(Event(at_s, kind, None, frontend, lasts_s))
                case Kind.REVOKE:
                    events.append(Event(at_s, kind, engine, None, lasts_s))
                case _:
                    events.append(Event(at_s, kind, engine, None, 0.0))
                    events.append(Event(at_s + lasts_s, Kind.RETIRE_ENGINE, engine, None, 0.0))
            at_s += lasts_s + random.uniform(*ENGINE_GAP_S)
