"""Small worlds with the faults that each is about. `depth` is what the tests visit; deeper ones are for the patient."""

from __future__ import annotations

from tests.model.world import Scenario

CONNECTION = frozenset({"drop", "duplicate", "blip"})
PROCESS = frozenset({"crash", "die", "silent"})
LEAVING = frozenset({"drain", "drain by hand", "crash", "blip", "abort"})
FRONTEND = frozenset({"restart frontend", "blip", "crash"})

ALONE = {"a": ("engine-0", 1)}
PAIR = {"a": ("engine-0", 1), "b": ("engine-1", 1)}
TRIO = {**PAIR, "c": ("engine-2", 1)}
TWINS = {"old": ("engine-0", 1), "new": ("engine-0", 2)}

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("greeting", ALONE, ("r1",), CONNECTION | PROCESS, num_faults=2, depth=7),
        Scenario("lost frames", ALONE, ("r1",), CONNECTION, num_faults=2, depth=7, has_begun=True),
        Scenario("one loss", PAIR, ("r1",), CONNECTION | PROCESS, num_faults=1, depth=6, has_begun=True),
        Scenario("two losses", PAIR, ("r1",), CONNECTION | PROCESS, num_faults=2, depth=4, has_begun=True),
        Scenario("two requests", PAIR, ("r1", "r2"), PROCESS | {"abort"}, num_faults=1, depth=5, has_begun=True),
        Scenario(
            "poison",
            TRIO,
            ("r1",),
            frozenset({"die"}),
            num_faults=3,
            depth=10,
            max_ticks=0,
            max_dials=0,
            has_begun=True,
        ),
        Scenario("twins", TWINS, ("r1",), PROCESS | {"blip"}, num_faults=2, depth=6),
        Scenario("fenced", TWINS, ("r1",), PROCESS | {"blip", "drop"}, num_faults=2, depth=5, has_begun=True),
        Scenario(
            "leaving", PAIR, ("r1",), LEAVING, num_faults=2, depth=5, num_tokens=12, tokens_a_step=4, has_begun=True
        ),
        Scenario("frontend restart", ALONE, ("r1",), FRONTEND, num_faults=2, depth=7, has_begun=True),
    )
}
