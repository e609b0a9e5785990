"""What happens to a cluster in a chaos run, and when: drawn from one seed before it begins. Pure.

One engine is always left alone. Engine 0 and frontend 0 keep their processes from start to end, so that what hundreds
of failovers leave in a process can be seen; all else happens to engine 0 too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

FIRST_S = 5.0
SHORTEST_GAP_S, LONGEST_GAP_S = 2.0, 6.0
CALM_AT_END_S = 20.0
"""So that streams end after the last event which began before it."""

RECOVERY_S = 8.0
"""What an engine is given, after its event is over, before it counts as healthy again."""


class Kind(StrEnum):
    KILL = "kill -9"
    TERM = "SIGTERM"
    STOP = "SIGSTOP, SIGCONT"
    CUT = "connection cut"
    SILENCE = "connection silent"
    DELAY = "connection slow"
    BLIP = "messages lost"
    FRONTEND = "frontend restart"
    ROTATE_SERVER = "frontends' key rotated"
    RETIRE_SERVER = "frontends' old key retired"
    ROTATE_ENGINE = "engine's key rotated"
    RETIRE_ENGINE = "engine's old key retired"
    REVOKE = "engine's key revoked, a new one granted"
    BROKEN_LIST = "allow-list broken"


ENDS_THE_PROCESS = frozenset({Kind.KILL, Kind.TERM})
ON_A_LINK = frozenset({Kind.CUT, Kind.SILENCE, Kind.DELAY, Kind.BLIP})
CHANGES_KEYS = frozenset({Kind.ROTATE_SERVER, Kind.RETIRE_SERVER, Kind.ROTATE_ENGINE, Kind.RETIRE_ENGINE})
"""Without harm to anybody."""

ON_KEYS = CHANGES_KEYS | {Kind.REVOKE, Kind.BROKEN_LIST}
"""`key_plan` draws them."""

_SECONDS: dict[Kind, tuple[float, float]] = {
    Kind.KILL: (0.0, 4.0),
    Kind.TERM: (0.0, 4.0),
    Kind.STOP: (0.5, 12.0),
    Kind.CUT: (0.2, 6.0),
    Kind.SILENCE: (0.5, 8.0),
    Kind.DELAY: (2.0, 6.0),
    Kind.BLIP: (0.0, 0.0),
    Kind.FRONTEND: (0.0, 3.0),
}
"""How long each lasts, at least and at most; of a process that ends, until it is started again."""

_WEIGHTS = {kind: 1 if kind in (Kind.FRONTEND, Kind.DELAY) else 2 for kind in _SECONDS}


@dataclass(frozen=True, slots=True)
class Event:
    """engine: None for a frontend's. frontend: the one at the other end of a link; None for all links of the engine.

    to_engine: the direction in which a blip loses `num_messages`.
    """

    at_s: float
    kind: Kind
    engine: int | None
    frontend: int | None
    lasts_s: float
    to_engine: bool = False
    num_messages: int = 0

    def __str__(self) -> str:
        whom = "" if self.engine is None else f" of e-{self.engine}"
        where = "" if self.frontend is None else f" at frontend-{self.frontend}"
        what = f", {self.num_messages} {'to the engine' if self.to_engine else 'to the frontend'}"
        return f"{self.kind}{whom}{where}{what if self.num_messages else ''}, {self.lasts_s:.1f} s"


def draw_events(
    seed: int, seconds: float, *, num_engines: int, num_frontends: int, others: Sequence[Event] = ()
) -> list[Event]:
    """In order of time. others: what happens besides; their engines and frontends have no second trouble meanwhile."""
    random = Random(f"{seed}/chaos")
    engine_free_at = [0.0] * num_engines
    frontend_free_at = [0.0] * num_frontends
    events: list[Event] = []
    at_s = FIRST_S
    while at_s < seconds - CALM_AT_END_S:
        (kind,) = random.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))
        lasts_s = random.uniform(*_SECONDS[kind])
        free_at = frontend_free_at if kind is Kind.FRONTEND else engine_free_at
        kept = 1 if kind is Kind.FRONTEND or kind in ENDS_THE_PROCESS else 0
        until_s = at_s + lasts_s + RECOVERY_S
        besides = [e for e in others if e.at_s <= until_s and at_s <= e.at_s + e.lasts_s + RECOVERY_S]
        taken = {e.frontend if kind is Kind.FRONTEND else e.engine for e in besides}
        choices = [i for i in range(kept, len(free_at)) if free_at[i] <= at_s and i not in taken]
        ill = {i for i, moment in enumerate(engine_free_at) if moment > at_s}
        healthy = num_engines - len(ill | {e.engine for e in besides if e.engine is not None})
        if choices and (kind is Kind.FRONTEND or healthy > 1):
            chosen = random.choice(choices)
            free_at[chosen] = until_s
            events.append(_event(random, at_s, kind, chosen, lasts_s, num_frontends))
        at_s += random.uniform(SHORTEST_GAP_S, LONGEST_GAP_S)
    return events


def _event(random: Random, at_s: float, kind: Kind, chosen: int, lasts_s: float, num_frontends: int) -> Event:
    if kind is Kind.FRONTEND:
        return Event(at_s, kind, None, chosen, lasts_s)
    if kind not in ON_A_LINK:
        return Event(at_s, kind, chosen, None, lasts_s)
    frontend = random.choice([None, *range(num_frontends)])
    if kind is not Kind.BLIP:
        return Event(at_s, kind, chosen, frontend, lasts_s)
    return Event(at_s, kind, chosen, frontend, lasts_s, random.random() < 0.5, random.randint(1, 10))
