"""The machine of one engine's membership, from admission on: one link session as its frontend sees it.

    ADMITTED   gets requests
    STALLED    no Pong for `STALLED_S` although the connection lives: gets nothing new; a Pong brings it back
    DRAINING   said that it leaves: finishes what it has
    LOST       over, for whatever reason; a later session of the same engine is another member
    LEFT       over, as it had said

Rules: only a Pong proves that both of the engine's threads live. Each output carries a number of its session, each Pong
repeats the last one and the count of control frames that came: a gap in either loses the session, since a request or an
output in it is gone. Every ping that was sent is remembered until a Pong to it or to a later one comes; a Pong to an
earlier one than those is stale. None is no verdict.

Pure. `engine_set` holds the members.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.identity import WITHOUT_KEYS, EngineIndex, Peer, SessionId
from roundhouse.protocol.machine import Machine
from roundhouse.protocol.messages import EngineCoreOutputs, Hello, Ping, Pong, SchedulerStats

STALLED_S = 3.0
LOST_S = 60.0
"""A long prefill, a first compilation, a held GIL: an engine that is merely busy must not flap."""

UNACKNOWLEDGED_S = 1.0
"""How long a Pong may show fewer control frames than its Ping told."""

MAX_PINGS_OUT = 128
"""Pings that wait for their Pong. No further one is sent then: each one sent is remembered until it is answered."""


class MembershipState(Enum):
    ADMITTED = "admitted"
    STALLED = "stalled"
    DRAINING = "draining"
    LOST = "lost"
    LEFT = "left"


class Heard:
    """A Pong came."""


class Silent:
    """None for `STALLED_S`."""


class Leaving:
    """It said Draining."""


class Ended:
    """The connection, a count, the time or the operator says that this session is over."""


_S = MembershipState

TABLE: dict[tuple[MembershipState, type], MembershipState] = {
    (_S.ADMITTED, Heard): _S.ADMITTED,
    (_S.ADMITTED, Silent): _S.STALLED,
    (_S.ADMITTED, Leaving): _S.DRAINING,
    (_S.ADMITTED, Ended): _S.LOST,
    (_S.STALLED, Heard): _S.ADMITTED,
    (_S.STALLED, Leaving): _S.DRAINING,
    (_S.STALLED, Ended): _S.LOST,
    (_S.DRAINING, Heard): _S.DRAINING,
    (_S.DRAINING, Leaving): _S.DRAINING,
    (_S.DRAINING, Ended): _S.LEFT,
}

OVER: frozenset[MembershipState] = frozenset({_S.LOST, _S.LEFT})


def check_load(load: SchedulerStats) -> None:
    """Raises `MalformedFrame` for numbers that no scheduler has: they would blind the balancer and the metrics."""
    if not all(0 <= number < math.inf for number in msgspec.structs.astuple(load)):
        raise MalformedFrame(f"a load that cannot be: {load}")


@dataclass(slots=True)
class Member:
    """One session. Its numbers are moved by the methods below and by nobody else.

    control_number: control frames sent, ADMITTED being the first. output_number: of the last output that came.
    peer: whose key it came by. is_superseded: the same process has a session by a newer key; this one only finishes.
    is_unreachable: nothing can be sent to it any more, what it said before is still being read; it is lost in a moment.
    """

    session_id: SessionId
    engine_index: EngineIndex
    routing_id: bytes
    hello: Hello
    max_message_bytes: int
    heard_at: float
    machine: Machine[MembershipState] = field(init=False)
    load: SchedulerStats = field(default_factory=SchedulerStats)
    step_s: float = 0.0
    control_number: int = 0
    output_number: int = 0
    num_inflight: int = 0
    num_sent_since_load: int = 0
    is_unreachable: bool = False
    peer: Peer = WITHOUT_KEYS
    is_superseded: bool = False
    _ping_number: int = 0
    _pings_out: deque[Ping] = field(default_factory=lambda: deque[Ping]())
    _short_since: float | None = None

    def __post_init__(self) -> None:
        name = f"session {self.session_id} with engine {self.hello.identity}"
        self.machine = Machine(name, TABLE, MembershipState.ADMITTED)

    @property
    def state(self) -> MembershipState:
        return self.machine.state

    @property
    def is_alive(self) -> bool:
        return self.machine.state not in OVER

    @property
    def is_taker(self) -> bool:
        """It may get new requests: ADMITTED was sent, since an engine drops what comes before that."""
        is_idle = self.is_unreachable or self.is_superseded
        return self.machine.state is MembershipState.ADMITTED and self.control_number > 0 and not is_idle

    def count_control_frame(self) -> None:
        """Before any frame but PING is sent to it."""
        self.control_number += 1

    def count_request(self) -> None:
        """A request was sent to it."""
        self.num_inflight += 1
        self.num_sent_since_load += 1

    def count_end(self) -> None:
        """One of its requests ended."""
        self.num_inflight -= 1

    def next_ping(self, frontend_instance: str) -> Ping | None:
        """None while `MAX_PINGS_OUT` are not answered."""
        if len(self._pings_out) == MAX_PINGS_OUT:
            return None
        self._ping_number += 1
        ping = Ping(frontend_instance, self.control_number, self._ping_number)
        self._pings_out.append(ping)
        return ping

    def on_outputs(self, outputs: EngineCoreOutputs) -> Verdict | None:
        expected = self.output_number + 1
        if outputs.sequence_number != expected:
            return _gap(f"output {outputs.sequence_number} came where {expected} was due")
        self.output_number = expected
        if outputs.scheduler_stats is not None:
            self._set_load(outputs.scheduler_stats)
        return None

    def on_pong(self, pong: Pong, now: float) -> Verdict | None:
        if self._is_stale(pong):
            return None
        if pong.last_output_number != self.output_number:
            return _gap(f"{pong.last_output_number} outputs were sent and {self.output_number} came")
        told = self._told_by(pong.ping_number)
        if told is None or pong.last_control_number > told:
            return _gap(f"pong {pong.ping_number} answers nothing that was asked")
        if pong.last_control_number == told:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        self.machine.move(Heard)
        self.heard_at = now
        self.step_s = pong.step_s
        self._set_load(pong.load)
        return None

    def on_draining(self) -> None:
        self.machine.move(Leaving)

    def judge(self, now: float) -> Verdict | None:
        """To be called now and then, after everything that came was handed in."""
        if self._short_since is not None and now - self._short_since >= UNACKNOWLEDGED_S:
            return _gap(f"control frames were lost on the way, {self.control_number} were sent")
        silence_s = now - self.heard_at
        if silence_s >= LOST_S:
            return Verdict(LossCause.STALLED, f"silent for {silence_s:.0f} s")
        if silence_s >= STALLED_S and self.machine.allows(Silent):
            self.machine.move(Silent)
        return None

    def restart_deadlines(self, now: float) -> None:
        """After this process stood still: the engine is not to blame for the silence."""
        self.heard_at = now
        if self._short_since is not None:
            self._short_since = now

    def end(self) -> None:
        self.machine.move(Ended)

    def _set_load(self, load: SchedulerStats) -> None:
        self.load = load
        self.num_sent_since_load = 0

    def _is_stale(self, pong: Pong) -> bool:
        """A Pong to this or a later ping has come: it proves nothing, and breaks no rule."""
        oldest = self._pings_out[0].ping_number if self._pings_out else self._ping_number + 1
        return pong.ping_number < oldest

    def _told_by(self, ping_number: int) -> int | None:
        """The control number of that ping; forgets it and all earlier ones."""
        while self._pings_out and self._pings_out[0].ping_number <= ping_number:
            ping = self._pings_out.popleft()
            if ping.ping_number == ping_number:
                return ping.last_control_number
        return None


def _gap(reason: str) -> Verdict:
    return Verdict(LossCause.GAP, reason)
