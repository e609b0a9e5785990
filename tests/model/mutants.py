"""Faults put into the machines on purpose: the explorer is worth what it finds of them.

Each takes pytest's monkeypatch and breaks one rule; `SCENARIO_OF` names the world in which that shows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import msgspec
import pytest

from roundhouse.frontend.engine_set import Effect, EngineSet
from roundhouse.frontend.live_request import LiveRequest, Resumed
from roundhouse.frontend.live_requests import LiveRequests
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import Member
from roundhouse.protocol import session as s
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, Ping, Pong

Mutant = Callable[[pytest.MonkeyPatch], None]


def no_attempt_check(patch: pytest.MonkeyPatch) -> None:
    """What an engine sends for a request that is not its any more counts."""

    def accept(self: LiveRequest, member: Member, output: EngineCoreOutput) -> bool:
        return self.member is not None

    patch.setattr(LiveRequest, "accept", accept)


def one_session_id_for_all(patch: pytest.MonkeyPatch) -> None:
    """A session that is over still speaks, for the one that came after it."""
    begin = EngineSet.__init__

    def init(self: EngineSet, frontend_instance: str, session_ids: object, **more: object) -> None:
        begin(self, frontend_instance, repeat(1), **more)  # type: ignore[arg-type]

    patch.setattr(EngineSet, "__init__", init)


def holder_is_not_ended(patch: pytest.MonkeyPatch) -> None:
    """A second session of an identity is admitted beside the first."""
    lose = EngineSet.lose

    def keep(self: EngineSet, member: Member, verdict: Verdict, *, tell: bool = True) -> list[Effect]:
        return [] if verdict.cause is LossCause.REPLACED else lose(self, member, verdict, tell=tell)

    patch.setattr(EngineSet, "lose", keep)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """A lower epoch is welcome while the higher one is alive, and what epoch an output has does not matter."""
    patch.setattr(EngineSet, "_reason_to_refuse", lambda self, hello: None)


def no_output_number_check(patch: pytest.MonkeyPatch) -> None:
    """An output that is lost or doubled on the way does not end the session."""

    def on_outputs(self: Member, outputs: EngineCoreOutputs) -> Verdict | None:
        self.output_number = outputs.sequence_number
        return None

    patch.setattr(Member, "on_outputs", on_outputs)


def no_last_output_check(patch: pytest.MonkeyPatch) -> None:
    """A Pong does not show that the last output was lost."""
    on_pong = Member.on_pong

    def forgiving(self: Member, pong: Pong, now: float) -> Verdict | None:
        return on_pong(self, msgspec.structs.replace(pong, last_output_number=self.output_number), now)

    patch.setattr(Member, "on_pong", forgiving)


def no_control_count(patch: pytest.MonkeyPatch) -> None:
    """A Ping does not show that a request was lost, and the Pong says what the Ping did."""
    on_ping = s.LinkSession._on_ping

    def forgiving(self: s.LinkSession, ping: Ping, now: float) -> list[s.Effect]:
        self._control_number = ping.last_control_number
        return on_ping(self, ping, now)

    patch.setattr(s.LinkSession, "_on_ping", forgiving)


def resumed_from_the_start(patch: pytest.MonkeyPatch) -> None:
    """The next engine is not told what the last one had sent."""
    place = LiveRequest.place

    def forgetful(self: LiveRequest, member: Member) -> EngineCoreRequest:
        return msgspec.structs.replace(place(self, member), output_token_ids=[])

    patch.setattr(LiveRequest, "place", forgetful)


def one_attempt_for_all(patch: pytest.MonkeyPatch) -> None:
    """Placed again, a request keeps the number of its attempt, and whoever sends for that number is believed."""
    place = LiveRequest.place

    def same(self: LiveRequest, member: Member) -> EngineCoreRequest:
        request = place(self, member)
        self.attempt = self.request.attempt
        return msgspec.structs.replace(request, attempt=self.attempt)

    def accept(self: LiveRequest, member: Member, output: EngineCoreOutput) -> bool:
        return self.member is not None and output.attempt == self.attempt

    patch.setattr(LiveRequest, "place", same)
    patch.setattr(LiveRequest, "accept", accept)


def lost_requests_stay(patch: pytest.MonkeyPatch) -> None:
    """The requests of a lost engine are not taken back."""
    patch.setattr(LiveRequests, "lose", lambda self, member, verdict, now: [])


def orphans_stay(patch: pytest.MonkeyPatch) -> None:
    """An engine is not told that a session with requests is over."""
    on = s.LinkSession.on

    def quiet(self: s.LinkSession, event: s.Event, now: float) -> list[s.Effect]:
        effects = on(self, event, now)
        return [s.Close(e.reason, False, e.was_refused) if isinstance(e, s.Close) else e for e in effects]

    patch.setattr(s.LinkSession, "on", quiet)


def poison_is_never_forgiven(patch: pytest.MonkeyPatch) -> None:
    """A token between two losses does not count."""
    take = LiveRequest.take

    def grudging(self: LiveRequest, output: EngineCoreOutput, now: float) -> Resumed | None:
        losses = list(self.suspicion.losses)
        resumed = take(self, output, now)
        self.suspicion.losses = losses
        return resumed

    patch.setattr(LiveRequest, "take", grudging)


SCENARIO_OF: dict[Mutant, str] = {
    no_attempt_check: "leaving",
    one_session_id_for_all: "lost frames",
    holder_is_not_ended: "twins",
    no_fence: "twins",
    no_output_number_check: "lost frames",
    no_last_output_check: "lost frames",
    no_control_count: "greeting",
    resumed_from_the_start: "one loss",
    one_attempt_for_all: "leaving",
    lost_requests_stay: "one loss",
    orphans_stay: "lost frames",
    poison_is_never_forgiven: "poison",
}
