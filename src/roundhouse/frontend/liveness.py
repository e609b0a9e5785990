"""`Liveness`: finds out which engines are there. A tick twice a second, a ping with every second one, pings to
everybody at once when a connection ended, and the burial of those that nothing can be sent to.

A verdict is passed only after everything that had come was read, and never for the time in which this process stood
still itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from roundhouse.clock import Clock
from roundhouse.frontend.engine_set import Effect, EngineSet
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import Member
from roundhouse.frontend.probe import Probe
from roundhouse.protocol.messages import Ping
from roundhouse.transport.frontend_link import FrontendLink, SendResult

TICK_S = 0.5
TICKS_A_PING = 2

LATE_S = 0.5
"""A tick that comes this much after its time: the whole process stood still, and no engine is to blame."""

MAX_UNDRAINED_TICKS = 10
"""Ticks in a row that found more to read than one go may take. Those who are silent are judged then all the same: peers
are read in turn, so that who had said something would have been heard, and one that floods us protects nobody."""

GONE_QUIET_S = 0.05
LAST_OUTPUTS_S = 4.0
"""An engine that leaves sends its last outputs first, but by another connection than the one that is seen to end. It is
lost when none came for the first time, or after the second, which is how long its PUSH lingers."""


class Liveness:
    """later: calls back after seconds, on the event loop. obey: does what the engine set decided."""

    def __init__(
        self,
        engines: EngineSet,
        link: FrontendLink,
        clock: Clock,
        *,
        instance: str,
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        encode_ping: Callable[[Ping], list[Any]],
        obey: Callable[[Sequence[Effect]], None],
    ) -> None:
        self._engines = engines
        self._link = link
        self._clock = clock
        self._instance = instance
        self._later = later
        self._encode_ping = encode_ping
        self._obey = obey
        self._probe = Probe(later, self.ping_all)
        self._on_tick: Callable[[], None] = lambda: None
        self._ticks = 0
        self._tick_due = 0.0
        self._num_undrained = 0

    def start(self, on_tick: Callable[[], None]) -> None:
        """`on_tick` is called after each tick's verdicts."""
        self._on_tick = on_tick
        self._schedule_tick()

    def on_disconnected(self) -> None:
        """Some connection ended; only a send can tell whose it was."""
        self._probe.on_disconnected()

    def ping(self, member: Member) -> None:
        ping = member.next_ping(self._instance)
        if ping is not None:
            self.judge_send(member, self.send(member, self._encode_ping(ping)))

    def ping_all(self) -> None:
        self._link.notice_departures()
        for member in self._engines.members():
            if not member.is_unreachable:
                self.ping(member)

    def send(self, member: Member, frames: list[Any]) -> SendResult:
        return self._link.send(member.routing_id, frames, generation=member.peer.generation)

    def judge_send(self, member: Member, result: SendResult) -> bool:
        """Whether it was sent. A member that it was not sent to gets nothing more, and is lost in a moment."""
        if result is SendResult.SENT:
            return True
        if not member.is_unreachable:
            member.is_unreachable = True
            give_up_at = self._clock() + LAST_OUTPUTS_S
            self._later(GONE_QUIET_S, partial(self._bury, member, result.value, member.output_number, give_up_at))
        return False

    def _bury(self, member: Member, reason: str, last_output_number: int, give_up_at: float) -> None:
        self._link.drain()
        if member.output_number != last_output_number and self._clock() < give_up_at:
            self._later(GONE_QUIET_S, partial(self._bury, member, reason, member.output_number, give_up_at))
        else:
            self._obey(self._engines.lose(member, Verdict(LossCause.UNREACHABLE, reason)))

    def _tick(self) -> None:
        now = self._clock()
        is_late = now - self._tick_due > LATE_S
        self._num_undrained = 0 if self._link.drain() else self._num_undrained + 1
        if is_late or 0 < self._num_undrained < MAX_UNDRAINED_TICKS:
            self._engines.restart_deadlines(now)
        self._obey(self._engines.judge(now))
        self._on_tick()
        self._ticks += 1
        if self._ticks % TICKS_A_PING == 0:
            self.ping_all()
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        self._tick_due = self._clock() + TICK_S
        self._later(TICK_S, self._tick)
