"""Which engine gets the next request. Pure: loads and what is cached where in, a choice out; docs/balancer.md says why.

An engine with `LOAD_BOUND` × the mean load or more gets nothing, whatever it has cached. Of the others, the one with
the least load after what the cached part of the prompt saves there gets it. A prompt that this frontend does not know
may be the next turn of a conversation that came in elsewhere: the hash of its anchor, taken together with each engine's
identity, names one engine, the same one at every frontend, and that one counts as if it had most of it.

The load is vLLM's score: what the engine says is waiting and running, raised by what was sent since it said so, plus a
penalty for a KV cache over half full; here relative to how many requests the engine runs at once, so that engines of
different size share fairly. The request that is to be placed counts among those that wait: a few long prompts may fill
a cache before anything waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from roundhouse.protocol.block_hash import BlockHash
from roundhouse.protocol.identity import EngineIndex, SessionId

KV_COMFORTABLE = 0.5
KV_PENALTY = 6.0
"""With a full cache, each waiting request counts four times."""

LOAD_BOUND = 1.3
"""× the mean load, the request that is to be placed counted in the mean. The least loaded engine is always below it."""

AFFINITY = 4.0
"""What a request saves where all of it is cached, in mean loads: below the bound a third of it outweighs any load."""

OUTPUT_WORK = 256
"""What a request costs beside its prompt, in prompt tokens: a short prompt that is cached saves little of it all."""

TRUST = 0.8
"""Share of what an engine is not known to have of a prompt that counts as cached where all frontends look for it."""


class EngineLoad(NamedTuple):
    """What the balancer knows of one engine that takes requests. A tuple: one per engine is made for each request, and
    it costs a third of a frozen dataclass.

    num_reported: waiting and running by its last report, of all frontends. num_sent_since: by this frontend after that.
    num_inflight: this frontend's live requests there, never more than the engine really has.
    num_cached_tokens: of the prompt that is to be placed, as far as this frontend knows.
    """

    session_id: SessionId
    engine_index: EngineIndex
    identity: str
    num_reported: int
    num_waiting: int
    num_sent_since: int
    num_inflight: int
    kv_cache_usage: float
    max_num_seqs: int
    num_cached_tokens: int = 0

    @property
    def score(self) -> float:
        num_requests = max(self.num_inflight, self.num_reported + self.num_sent_since)
        if self.kv_cache_usage <= KV_COMFORTABLE:
            return num_requests / self.max_num_seqs
        pressure = (self.num_waiting + 1) * KV_PENALTY * (self.kv_cache_usage - KV_COMFORTABLE)
        return (num_requests + pressure) / self.max_num_seqs


def choose(
    loads: Sequence[EngineLoad],
    *,
    num_prompt_tokens: int = 0,
    anchor: BlockHash | None = None,
    data_parallel_rank: int | None = None,
    turn: int = 0,
) -> SessionId | None:
    """The engine for one request, or the one that `data_parallel_rank` pins; None when there is none.

    anchor: the block that tells the prompt's conversation from others; None when nothing does.
    turn: rises with each call and decides between equals, so that all of them take turns.
    """
    if data_parallel_rank is not None:
        pinned = (load.session_id for load in loads if load.engine_index == data_parallel_rank)
        return next(pinned, None)
    if not loads:
        return None
    scores = [load.score for load in loads]
    num_requests = sum(score * load.max_num_seqs for load, score in zip(loads, scores, strict=True))
    mean = (num_requests + 1) / sum(load.max_num_seqs for load in loads)
    allowed = [(load, score / mean) for load, score in zip(loads, scores, strict=True) if score < LOAD_BOUND * mean]
    agreed = None if anchor is None else _agreed(allowed, anchor)
    work = num_prompt_tokens + OUTPUT_WORK
    costs: list[float] = []
    for load, relative in allowed:
        saved: float = load.num_cached_tokens
        if load is agreed:
            saved += TRUST * (num_prompt_tokens - saved)
        costs.append(relative - AFFINITY * saved / work)
    least = min(costs)
    equals = [load for (load, _), cost in zip(allowed, costs, strict=True) if cost == least]
    return equals[turn % len(equals)].session_id


def _agreed(allowed: Sequence[tuple[EngineLoad, float]], anchor: BlockHash) -> EngineLoad | None:
    """The engine where all frontends look for that conversation; None while it has its mean share and another idles."""
    # Highest random weight hashing: who comes or goes moves no other engine's conversations.
    weights = [sha256(anchor + load.identity.encode()).digest() for load, _ in allowed]
    agreed, relative = allowed[weights.index(max(weights))]
    return None if relative >= 1.0 and not all(other for _, other in allowed) else agreed
