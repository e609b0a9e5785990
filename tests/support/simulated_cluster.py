"""Engines with real KV cache managers and invented times, under a trace of conversations: for tests of who gets what.

A turn takes `PREFILL_S` for each prompt token that is not cached and `DECODE_S` for each output; engines tell their
load every `REPORT_S`, each at its own moment. A turn that has no room waits for those before it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Protocol

from roundhouse.kvcache.config import CacheConfig
from roundhouse.kvcache.manager import KVCacheManager
from roundhouse.protocol.messages import SchedulerStats
from tests.support.conversations import BLOCK_SIZE, Turn

PREFILL_S = 0.0002
DECODE_S = 0.02
REPORT_S = 0.1
MAX_NUM_SEQS = 64


class Router(Protocol):
    """Who decides. Each call may submit turns to engines of the cluster."""

    def on_turn(self, turn: Turn) -> None: ...
    def on_end(self, engine: Engine, turn: Turn) -> None: ...
    def on_report(self, engine: Engine, stats: SchedulerStats) -> None: ...
    def on_engine(self, engine: Engine) -> None: ...
    def on_lost(self, engine: Engine, turns: Sequence[Turn]) -> None: ...


@dataclass(eq=False)
class Engine:
    """load_s: integral of its load over the time."""

    identity: str
    num_blocks: int
    joined_at: float
    kv: KVCacheManager = field(init=False)
    waiting: deque[Turn] = field(default_factory=deque)
    running: dict[str, Turn] = field(default_factory=dict)
    is_lost: bool = False
    load_s: float = 0.0
    num_turns: int = 0
    _changed_at: float = 0.0

    def __post_init__(self) -> None:
        self.kv = KVCacheManager(CacheConfig(num_blocks=self.num_blocks, block_size=BLOCK_SIZE))
        self._changed_at = self.joined_at

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(len(self.running), len(self.waiting), self.kv.usage)

    def num_cached_tokens(self, turn: Turn) -> int:
        return len(self.kv.get_computed_blocks(turn.hashes, len(turn.prompt))) * BLOCK_SIZE

    def integrate(self, now: float) -> None:
        """To be called before its load changes."""
        self.load_s += self.load * (now - self._changed_at)
        self._changed_at = now


@dataclass
class Cluster:
    """num_hit_tokens, num_prompt_tokens: of all turns as they were admitted. excesses: of each placement, how many
    requests more than the bound it left on the engine, `bound` × the mean rounded up.
    """

    make_router: Callable[[Cluster], Router]
    bound: float
    now: float = 0.0
    engines: list[Engine] = field(default_factory=list)
    gone: list[Engine] = field(default_factory=list)
    num_hit_tokens: int = 0
    num_prompt_tokens: int = 0
    num_ended: int = 0
    excesses: list[int] = field(default_factory=list)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _tie: count[int] = field(default_factory=count)
    _next_turns: dict[str, Turn] = field(default_factory=dict)
    _num_open: int = 0

    def __post_init__(self) -> None:
        self.router = self.make_router(self)

    @property
    def hit_ratio(self) -> float:
        return self.num_hit_tokens / self.num_prompt_tokens

    def at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._tie), call))

    def run(self, trace: Sequence[Sequence[Turn]]) -> None:
        """Until every turn has ended."""
        for turns in trace:
            self._num_open += len(turns)
            self._next_turns.update({turn.request_id: after for turn, after in pairwise(turns)})
            self._arrive_at(turns[0].think_s, turns[0])
        while self._num_open:
            self.now, _, call = heapq.heappop(self._events)
            call()
        for engine in self.engines:
            engine.integrate(self.now)

    def join(self, identity: str, num_blocks: int) -> None:
        engine = Engine(identity, num_blocks, self.now)
        self.engines.append(engine)
        self.router.on_engine(engine)
        self.at(self.now + REPORT_S * (len(self.engines) % 7 + 1) / 7, lambda: self._report(engine))

    def lose(self, identity: str) -> None:
        """It is killed, with its cache; what it had goes elsewhere from its start."""
        engine = next(engine for engine in self.engines if engine.identity == identity)
        engine.integrate(self.now)
        engine.is_lost = True
        self.engines.remove(engine)
        self.gone.append(engine)
        turns = [*engine.running.values(), *engine.waiting]
        self.router.on_lost(engine, turns)

    def submit(self, engine: Engine, turn: Turn) -> None:
        engine.integrate(self.now)
        engine.waiting.append(turn)
        engine.num_turns += 1
        mean = sum(other.load for other in self.engines) / len(self.engines)
        self.excesses.append(max(0, engine.load - math.ceil(self.bound * mean)))
        self._admit(engine)

    def _arrive_at(self, when: float, turn: Turn) -> None:
        self.at(when, lambda: self.router.on_turn(turn))

    def _report(self, engine: Engine) -> None:
        if engine.is_lost:
            return
        self.router.on_report(engine, engine.stats())
        self.at(self.now + REPORT_S, lambda: self._report(engine))

    def _admit(self, engine: Engine) -> None:
        while engine.waiting and len(engine.running) < MAX_NUM_SEQS:
            turn = engine.waiting[0]
            hits = engine.kv.get_computed_blocks(turn.hashes, len(turn.prompt))
            num_tokens = len(turn.prompt) + len(turn.outputs)
            if engine.kv.allocate_slots(turn.request_id, num_tokens, hits) is None:
                return
            engine.running[turn.request_id] = engine.waiting.popleft()
            self.num_prompt_tokens += len(turn.prompt)
            self.num_hit_tokens += len(hits) * BLOCK_SIZE
            prefilled_at = self.now + PREFILL_S * (len(turn.prompt) - len(hits) * BLOCK_SIZE)
            self.at(prefilled_at, lambda turn=turn: self._prefill(engine, turn))

    def _prefill(self, engine: Engine, turn: Turn) -> None:
        if engine.is_lost:
            return
        engine.kv.cache_blocks(turn.request_id, turn.hashes, len(turn.prompt))
        self.at(self.now + DECODE_S * len(turn.outputs), lambda: self._end(engine, turn))

    def _end(self, engine: Engine, turn: Turn) -> None:
        if engine.is_lost:
            return
        engine.kv.cache_blocks(turn.request_id, turn.hashes, len(turn.prompt) + len(turn.outputs))
        engine.kv.free(turn.request_id)
        engine.integrate(self.now)
        del engine.running[turn.request_id]
        self._num_open -= 1
        self.num_ended += 1
        self._admit(engine)
        self.router.on_end(engine, turn)
        after = self._next_turns.get(turn.request_id)
        if after is not None:
            self._arrive_at(self.now + after.think_s, after)
