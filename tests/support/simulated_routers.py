"""Who decides in a simulated cluster: real dispatchers that know what frontends know, or somebody who knows all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from roundhouse.frontend.dispatcher import Dispatcher
from roundhouse.frontend.engine_set import EngineSet
from roundhouse.frontend.live_requests import LiveRequests
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import Member
from roundhouse.protocol.frames import FrontendMessage
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SchedulerStats
from roundhouse.protocol.sampling import FinishReason
from tests.support.conversations import BLOCK_SIZE, Turn
from tests.support.mesh import admit, hello, request
from tests.support.simulated_cluster import MAX_NUM_SEQS, Cluster, Engine


class _Frontend:
    """One frontend's own view: its dispatcher, and its sessions with the engines."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._engines = EngineSet("f", count(1))
        self._names: dict[int, Engine] = {}
        self._members: dict[Engine, Member] = {}
        self._turns: dict[str, Turn] = {}
        self._attempts: dict[str, int] = {}
        self._dispatcher = Dispatcher(
            self._engines,
            LiveRequests(),
            lambda: cluster.now,
            send=self._send,
            give_up=_refuse,
            on_resumed=lambda _resumed: None,
        )

    def on_turn(self, turn: Turn) -> None:
        self._turns[turn.request_id] = turn
        self._dispatcher.add(request(turn.request_id, prompt=turn.prompt, max_tokens=len(turn.outputs)))

    def on_end(self, engine: Engine, turn: Turn) -> None:
        if self._turns.pop(turn.request_id, None) is not None:
            attempt = self._attempts.pop(turn.request_id)
            end = EngineCoreOutput(turn.request_id, attempt, 0, turn.outputs, FinishReason.LENGTH)
            self._hear(engine, outputs=[end])

    def on_report(self, engine: Engine, stats: SchedulerStats) -> None:
        self._hear(engine, scheduler_stats=stats)

    def on_engine(self, engine: Engine) -> None:
        greeting = hello(engine.identity, block_size=BLOCK_SIZE, num_blocks=engine.num_blocks, max_model_len=2**20)
        assert greeting.max_num_seqs == MAX_NUM_SEQS
        member = self._members[engine] = admit(self._engines, greeting, self._cluster.now)
        self._names[member.session_id] = engine
        member.count_control_frame()
        self._dispatcher.on_taker()

    def on_lost(self, engine: Engine, _turns: Sequence[Turn]) -> None:
        member = self._members[engine]
        verdict = Verdict(LossCause.UNREACHABLE, "killed")
        self._engines.lose(member, verdict)
        self._dispatcher.on_lost(member, verdict)

    def _send(self, member: Member, message: FrontendMessage) -> bool:
        assert isinstance(message, EngineCoreRequest)
        self._attempts[message.request_id] = message.attempt
        self._cluster.submit(self._names[member.session_id], self._turns[message.request_id])
        return True

    def _hear(self, engine: Engine, **fields: object) -> None:
        member = self._members[engine]
        outputs = EngineCoreOutputs(
            member.session_id, member.engine_index, member.hello.epoch, member.output_number + 1, **fields
        )
        assert self._engines.on_outputs(member, outputs) == []
        assert self._dispatcher.on_outputs(member, outputs).num_late == 0


class Frontends:
    """Independent ones; each turn comes in at another."""

    def __init__(self, cluster: Cluster, num_frontends: int) -> None:
        self._frontends = [_Frontend(cluster) for _ in range(num_frontends)]

    def on_turn(self, turn: Turn) -> None:
        self._frontends[turn.door % len(self._frontends)].on_turn(turn)

    def on_end(self, engine: Engine, turn: Turn) -> None:
        for frontend in self._frontends:
            frontend.on_end(engine, turn)

    def on_report(self, engine: Engine, stats: SchedulerStats) -> None:
        for frontend in self._frontends:
            frontend.on_report(engine, stats)

    def on_engine(self, engine: Engine) -> None:
        for frontend in self._frontends:
            frontend.on_engine(engine)

    def on_lost(self, engine: Engine, turns: Sequence[Turn]) -> None:
        for frontend in self._frontends:
            frontend.on_lost(engine, turns)


class AllKnowing:
    """Knows the true loads at every moment; of the engines under the bound it takes the one that `prefers` ranks
    highest, the least loaded of equals.
    """

    def __init__(self, cluster: Cluster, prefers: Callable[[Engine, Turn], float]) -> None:
        self._cluster = cluster
        self._prefers = prefers

    def on_turn(self, turn: Turn) -> None:
        engines = self._cluster.engines
        mean = (sum(engine.load for engine in engines) + 1) / len(engines)
        allowed = [engine for engine in engines if engine.load < self._cluster.bound * mean]
        best = max(allowed, key=lambda engine: (self._prefers(engine, turn), -engine.load))
        self._cluster.submit(best, turn)

    def on_end(self, engine: Engine, turn: Turn) -> None: ...
    def on_report(self, engine: Engine, stats: SchedulerStats) -> None: ...
    def on_engine(self, engine: Engine) -> None: ...

    def on_lost(self, engine: Engine, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.on_turn(turn)


def oracle(cluster: Cluster) -> AllKnowing:
    """What every engine has cached, it knows too."""
    return AllKnowing(cluster, lambda engine, turn: engine.num_cached_tokens(turn))


def by_load_alone(cluster: Cluster) -> AllKnowing:
    return AllKnowing(cluster, lambda engine, _turn: -engine.load)


def _refuse(given_up: list[EngineCoreOutput]) -> None:
    raise AssertionError(f"given up: {given_up}")
