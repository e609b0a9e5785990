"""A fair scheduler: everybody does what there is to do, nothing breaks any more. Every request must come to its end."""

from __future__ import annotations

from tests.model.violation import Violation
from tests.model.world import Event, World

MAX_ROUNDS = 40
"""Far more than any state needs: a lost frame is seen by the second tick, a lost Hello by the next session."""

LEFT_OUT = frozenset({"end drain", "tick"})
"""A drain ends by itself when its requests do; a tick comes once a round."""


def run_fairly(world: World, known_good: set[int]) -> int:
    """Runs `world` until it is settled, or in a state from which that is known; returns the number of rounds.

    known_good: keys of states that settle; those on the way are added. Raises `Violation` when it never does.
    """
    world.is_fair = True
    world.faults_left = world.num_ticks = world.num_dials = 0
    passed: list[int] = []
    for number in range(MAX_ROUNDS):
        key = world.key()
        if key in known_good or world.is_settled:
            known_good.update(passed)
            return number
        passed.append(key)
        _round(world)
        world.num_ticks = world.num_dials = 0
    raise Violation(f"after {MAX_ROUNDS} rounds without a fault: {_what_is_left(world)}")


def _round(world: World) -> None:
    for event in world.enabled():
        if event.kind not in LEFT_OUT and event in world.enabled():
            world.play(event)
    _deliver_all(world)
    world.play(Event("tick"))
    _deliver_all(world)
    world.check()


def _deliver_all(world: World) -> None:
    while deliveries := world.deliveries():
        for event in deliveries:
            world.play(event)


def _what_is_left(world: World) -> str:
    shown = [f"{key} has {s.num_tokens} tokens, {s.ended or 'no end'}" for key, s in world.frontend.shown.items()]
    members = [f"{m.hello.identity} is {m.state.value}" for m in world.frontend.engines.members()]
    busy = [f"{slot} computes {list(engine.computing)}" for slot, engine in world.engines.items() if engine.computing]
    return "; ".join([*shown, *world.to_come, *members, *busy])
