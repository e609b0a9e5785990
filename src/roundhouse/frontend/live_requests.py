"""`LiveRequests`: every request from its acceptance to its last output, and where each goes when its engine is lost.

Pure: the shell sends what `place` returns, and passes on the outputs that end what nobody will serve any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from roundhouse.frontend.live_request import LiveRequest, Resumed
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import Member
from roundhouse.protocol.errors import EngineDeadError, NoEngine, RequestPoisoned, RoundhouseError
from roundhouse.protocol.identity import SessionId
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, Hello, OutputError
from roundhouse.protocol.sampling import FinishReason


@dataclass(frozen=True, slots=True)
class WaitLimits:
    """How long a request waits while no engine can take it, and how many may.

    wait_s: one that no engine had; 0 refuses it at once. resume_s: one whose engine is lost.
    max_waiting: requests that no engine had; the others were accepted once and are not counted.
    """

    wait_s: float = 30.0
    resume_s: float = 120.0
    max_waiting: int = 1024


@dataclass(slots=True)
class Accepted:
    """What is left of a message from an engine. returned: requests that the engine gave back, since it leaves."""

    outputs: EngineCoreOutputs
    num_late: int = 0
    resumed: list[Resumed] = field(default_factory=lambda: list[Resumed]())
    returned: list[LiveRequest] = field(default_factory=lambda: list[LiveRequest]())


class LiveRequests:
    def __init__(self, limits: WaitLimits | None = None) -> None:
        self.limits = limits or WaitLimits()
        self._live: dict[str, LiveRequest] = {}
        self._waiting: dict[str, LiveRequest] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def __len__(self) -> int:
        return len(self._live)

    def get(self, request_id: str) -> LiveRequest | None:
        """None for one that has ended or never was."""
        return self._live.get(request_id)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: EngineCoreRequest, now: float) -> LiveRequest:
        """It waits from here on, until it is placed."""
        live = LiveRequest(request, now)
        self._live[request.request_id] = self._waiting[request.request_id] = live
        return live

    def may_wait(self, live: LiveRequest) -> bool:
        """Whether a new request may stay without an engine, `live` counted."""
        return self.limits.wait_s > 0 and self._num_new_waiting() <= self.limits.max_waiting and not live.was_placed

    def waiting(self) -> list[LiveRequest]:
        """In the order in which they are to be placed."""
        return sorted(self._waiting.values(), key=lambda live: live.rank)

    def placed_with(self, member: Member) -> list[LiveRequest]:
        """In the order in which they would be placed again."""
        return sorted((live for live in self._live.values() if live.member is member), key=lambda live: live.rank)

    def has_waiting_suspect(self) -> bool:
        return any(live.suspicion.is_suspect for live in self._waiting.values())

    def sessions_with_suspects(self) -> set[SessionId]:
        """Of engines that have a request which must be the only one of its kind there."""
        return {
            live.member.session_id
            for live in self._live.values()
            if live.suspicion.is_suspect and live.member is not None
        }

    def place(self, live: LiveRequest, member: Member) -> EngineCoreRequest:
        """The message that `member` is to be sent."""
        del self._waiting[live.request_id]
        return live.place(member)

    def take_back(self, live: LiveRequest, cause: LossCause | None, now: float) -> None:
        """Its engine has it no more: it waits. cause: None when nothing was sent to it."""
        live.lose(cause, now)
        self._waiting[live.request_id] = live

    def remove(self, request_ids: Iterable[str]) -> list[tuple[Member, list[str]]]:
        """Forgets them; what still comes for them is late. Returns who holds which, ids that nobody holds left out."""
        held: dict[int, tuple[Member, list[str]]] = {}
        for request_id in request_ids:
            live = self._live.get(request_id)
            if live is None:
                continue
            if live.member is not None:
                held.setdefault(live.member.session_id, (live.member, []))[1].append(request_id)
            self._forget(live)
        return list(held.values())

    def accept(self, member: Member, outputs: EngineCoreOutputs, now: float) -> Accepted:
        """`outputs` without those that are late, doubled or of an earlier attempt.

        An engine that aborts on its own account leaves: what it gives back waits again.
        """
        accepted = Accepted(outputs)
        fresh: list[EngineCoreOutput] = []
        for output in outputs.outputs:
            live = self._live.get(output.request_id)
            if live is None or not live.accept(member, output):
                accepted.num_late += 1
                continue
            resumed = live.take(output, now)
            if resumed is not None:
                accepted.resumed.append(resumed)
            if output.finish_reason is FinishReason.ABORT:
                self.take_back(live, LossCause.DRAINED, now)
                accepted.returned.append(live)
                if not output.new_token_ids:
                    continue
                output = msgspec.structs.replace(output, finish_reason=None)
            elif output.finish_reason is not None:
                self._forget(live)
            fresh.append(output)
        if accepted.num_late or accepted.returned:
            accepted.outputs = msgspec.structs.replace(outputs, outputs=fresh)
        return accepted

    def lose(self, member: Member, verdict: Verdict, now: float) -> list[EngineCoreOutput]:
        """Every request of a lost engine waits again. Returns the ends of those that are given up instead."""
        given_up: list[EngineCoreOutput] = []
        for live in self.placed_with(member):
            self.take_back(live, verdict.cause, now)
            if live.suspicion.is_poisoned:
                error = RequestPoisoned(
                    f"{len(live.suspicion.losses)} engines were lost while they had this request and gave no token;"
                    f" the last one, {member.hello.identity}: {verdict.reason}"
                )
                given_up.append(self.give_up(live, error))
        return given_up

    def on_seen(self, engine: Hello) -> None:
        """An engine was admitted, for the first time or again: what that tells of the losses that were counted."""
        for live in self._live.values():
            if live.suspicion.losses:
                live.suspicion.on_seen(engine)

    def expire(self, now: float) -> list[EngineCoreOutput]:
        """The ends of those that waited too long."""
        return [self.give_up(live, _waited(live)) for live in self.waiting() if self._waits_too_long(live, now)]

    def give_up(self, live: LiveRequest, error: RoundhouseError) -> EngineCoreOutput:
        """The output that ends a live request with `error`."""
        place = (live.request_id, max(live.attempt, live.request.attempt), len(live.output_token_ids))
        self._forget(live)
        return EngineCoreOutput(
            *place, [], FinishReason.ERROR, error=OutputError(error.code, error.message, error.param)
        )

    def _waits_too_long(self, live: LiveRequest, now: float) -> bool:
        limit_s = self.limits.resume_s if live.was_placed else self.limits.wait_s
        return now - live.waits_since >= limit_s

    def _num_new_waiting(self) -> int:
        return sum(not live.was_placed for live in self._waiting.values())

    def _forget(self, live: LiveRequest) -> None:
        live.end()
        del self._live[live.request_id]
        self._waiting.pop(live.request_id, None)


def choices_for(live: LiveRequest, takers: Sequence[Member], *, but: Member | None = None) -> list[Member]:
    """The engines that may get the request."""
    return [member for member in takers if member is not but and live.fits(member.hello)]


def _waited(live: LiveRequest) -> RoundhouseError:
    if live.was_placed:
        return EngineDeadError("the engine of this request is lost, and none that could go on with it came")
    return NoEngine("no engine takes requests now")
