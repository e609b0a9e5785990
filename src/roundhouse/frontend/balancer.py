"""Which engine gets the next request. Pure: loads in, a choice out.

The score is vLLM's: what the engine says is waiting and running, raised by what was sent since it said so, plus a
penalty for a KV cache over half full; here relative to how many requests the engine runs at once, so that engines of
different size share fairly. The request that is to be placed counts among those that wait: a few long prompts may fill
a cache before anything waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roundhouse.protocol.identity import EngineIndex, SessionId

KV_COMFORTABLE = 0.5
KV_PENALTY = 6.0
"""With a full cache, each waiting request counts four times."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What the balancer knows of one engine that takes requests.

    num_reported: waiting and running by its last report, of all frontends. num_sent_since: by this frontend after that.
    num_inflight: this frontend's live requests there, never more than the engine really has.
    """

    session_id: SessionId
    engine_index: EngineIndex
    num_reported: int
    num_waiting: int
    num_sent_since: int
    num_inflight: int
    kv_cache_usage: float
    max_num_seqs: int

    @property
    def score(self) -> float:
        num_requests = max(self.num_inflight, self.num_reported + self.num_sent_since)
        num_waiting = self.num_waiting + 1
        pressure = num_waiting * KV_PENALTY * max(0.0, self.kv_cache_usage - KV_COMFORTABLE)
        return (num_requests + pressure) / self.max_num_seqs


def choose(loads: Sequence[EngineLoad], *, data_parallel_rank: int | None = None, turn: int = 0) -> SessionId | None:
    """The least loaded engine, or the one that `data_parallel_rank` pins; None when there is none.

    turn: rises with each call and decides between the least loaded ones, so that all of them take turns.
    """
    if data_parallel_rank is not None:
        pinned = (load.session_id for load in loads if load.engine_index == data_parallel_rank)
        return next(pinned, None)
    if not loads:
        return None
    scores = [load.score for load in loads]
    least = min(scores)
    equals = [load for load, score in zip(loads, scores, strict=True) if score == least]
    return equals[turn % len(equals)].session_id
