"""Real dispatchers, balancers and KV cache managers under traces of conversations, against an oracle that knows all.

Every turn of a conversation comes in at a random one of the frontends, which tell each other nothing. The oracle sees
what every engine has cached and what it does at that moment, and keeps the same bound.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from roundhouse.frontend.balancer import LOAD_BOUND
from tests.support.conversations import Mixture, Turn, make_trace
from tests.support.simulated_cluster import Cluster, Router
from tests.support.simulated_routers import Frontends, by_load_alone, oracle

Script = Callable[[Cluster], None]

SHARED = Mixture(num_conversations=250)
NOTHING_SHARED = Mixture(num_conversations=250, system_tokens=[0])
QUIET = Mixture(num_conversations=150, start_rate=0.5)


def simulate(
    make_router: Callable[[Cluster], Router],
    trace: list[list[Turn]],
    num_engines: int,
    num_blocks: int,
    script: Script | None = None,
) -> Cluster:
    cluster = Cluster(make_router, LOAD_BOUND)
    for number in range(num_engines):
        cluster.join(f"engine-{number}", num_blocks)
    if script is not None:
        script(cluster)
    cluster.run(trace)
    assert cluster.num_ended == sum(len(turns) for turns in trace)
    return cluster


def frontends(num_frontends: int) -> Callable[[Cluster], Router]:
    return functools.partial(Frontends, num_frontends=num_frontends)


@pytest.mark.parametrize(
    ("mixture", "num_engines", "num_blocks", "num_frontends"),
    [
        pytest.param(SHARED, 8, 2500, 1, id="one frontend"),
        pytest.param(SHARED, 8, 2500, 3, id="three frontends"),
        pytest.param(SHARED, 8, 1200, 3, id="caches too small for all"),
        pytest.param(NOTHING_SHARED, 6, 2000, 3, id="nothing shared"),
        pytest.param(QUIET, 4, 1200, 2, id="less than one request for each engine"),
    ],
)
def test_hits_come_close_to_those_of_an_oracle_within_the_same_bound(
    mixture: Mixture, num_engines: int, num_blocks: int, num_frontends: int
) -> None:
    trace = make_trace(2, mixture)
    best = simulate(oracle, trace, num_engines, num_blocks)
    ours = simulate(frontends(num_frontends), trace, num_engines, num_blocks)
    assert ours.hit_ratio >= 0.9 * best.hit_ratio
    mean_load_s = sum(engine.load_s for engine in ours.engines) / num_engines
    assert max(engine.load_s for engine in ours.engines) <= LOAD_BOUND * mean_load_s
    # A placement keeps the bound by what its frontend knows; what others did since the last report it does not.
    assert set(best.excesses) == {0}
    assert sum(map(bool, ours.excesses)) <= 0.03 * len(ours.excesses)
    assert max(ours.excesses) <= 2


def test_load_alone_is_far_from_the_oracle() -> None:
    """So the test above tells a balancer that knows prefixes from one that does not."""
    trace = make_trace(2, SHARED)
    hit_ratio = simulate(by_load_alone, trace, 8, 2500).hit_ratio
    assert hit_ratio < 0.75 * simulate(oracle, trace, 8, 2500).hit_ratio


def test_engines_that_come_and_go() -> None:
    def script(cluster: Cluster) -> None:
        cluster.at(10.0, lambda: cluster.lose("engine-1"))
        cluster.at(15.0, lambda: cluster.join("engine-6", 2500))
        cluster.at(20.0, lambda: cluster.join("engine-1", 2500))
        cluster.at(25.0, lambda: cluster.lose("engine-2"))

    trace = make_trace(3, SHARED)
    best = simulate(oracle, trace, 6, 2500, script)
    ours = simulate(frontends(3), trace, 6, 2500, script)
    assert ours.hit_ratio >= 0.9 * best.hit_ratio
    rates = {engine.identity: engine.load_s / (ours.now - engine.joined_at) for engine in ours.engines}
    assert sorted(rates) == ["engine-0", "engine-1", "engine-3", "engine-4", "engine-5", "engine-6"]
    mean = sum(rates.values()) / len(rates)
    assert max(rates.values()) <= LOAD_BOUND * mean
    assert min(rates.values()) >= 0.7 * mean, "a newcomer is used although it has nothing cached"


def test_the_same_seed_gives_the_same_run() -> None:
    trace = make_trace(5, QUIET)
    first, second = (simulate(frontends(2), trace, 3, 1000) for _ in range(2))
    assert (first.num_hit_tokens, first.now, first.excesses) == (second.num_hit_tokens, second.now, second.excesses)
