"""One link session as the engine sees it: from two sockets that connect to a frontend that admits, pings and goes.

    CONNECTING   both sockets are on their way to the frontend
    GREETED      both are connected, a Hello has gone out on each
    ADMITTED     the frontend sends requests; it pings every second
    REFUSED      it told this session to end, before or after it admitted it; or it did not let this key in
    CLOSED       connection, frames or time were lost

Rules: a session is used once. Every frame of the frontend but PING is a control frame and counts, whatever is in it;
each Ping carries the frontend's count, so that a lost frame shows within a second. A frontend that is not heard of for
`SILENCE_S` has forgotten this session, although ZeroMQ's heartbeats still pass.

Pure: no socket, no clock. `transport/engine_input.py` obeys the effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.frames import FrontendMessage
from roundhouse.protocol.machine import Machine
from roundhouse.protocol.messages import PROTOCOL_VERSIONS, Admitted, Ping, Refused

CONNECT_S = 5.0
"""From the first SYN to both handshakes."""

ADMIT_S = 5.0
"""From Hello to the answer."""

SILENCE_S = 15.0
"""Without a Ping. Frontends ping every second; a busy event loop may be late, but not by this much."""


class SessionState(Enum):
    CONNECTING = "connecting"
    GREETED = "greeted"
    ADMITTED = "admitted"
    REFUSED = "refused"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Connected:
    """Both sockets finished their handshakes."""


@dataclass(frozen=True, slots=True)
class Admission:
    admitted: Admitted


@dataclass(frozen=True, slots=True)
class Refusal:
    refused: Refused


@dataclass(frozen=True, slots=True)
class Pinged:
    ping: Ping


@dataclass(frozen=True, slots=True)
class Requested:
    """Any other message of the frontend."""

    message: FrontendMessage


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection ended, a send found no room, or too much waits."""

    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    """The frontend does not let this engine's key in."""

    reason: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    pass


Event = Connected | Admission | Refusal | Pinged | Requested | Broken | Denied | DeadlinePassed


@dataclass(frozen=True, slots=True)
class SendHello:
    """On both sockets, behind the empty registration frame on the DEALER."""


@dataclass(frozen=True, slots=True)
class Open:
    """Requests may come and outputs may go."""

    admitted: Admitted


@dataclass(frozen=True, slots=True)
class Answer:
    """A Pong is due."""

    ping_number: int
    last_control_number: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """To the busy loop."""

    message: FrontendMessage


@dataclass(frozen=True, slots=True)
class Close:
    """Both sockets. `was_open`: there may be requests of this session. `was_refused`: trying again is no use soon."""

    reason: str
    was_open: bool
    was_refused: bool = False


Effect = SendHello | Open | Answer | Deliver | Close

_S = SessionState

TABLE: dict[tuple[SessionState, type], SessionState] = {
    (_S.CONNECTING, Connected): _S.GREETED,
    (_S.CONNECTING, Broken): _S.CLOSED,
    (_S.CONNECTING, Denied): _S.REFUSED,
    (_S.CONNECTING, DeadlinePassed): _S.CLOSED,
    (_S.GREETED, Admission): _S.ADMITTED,
    (_S.GREETED, Refusal): _S.REFUSED,
    (_S.GREETED, Broken): _S.CLOSED,
    (_S.GREETED, DeadlinePassed): _S.CLOSED,
    (_S.ADMITTED, Pinged): _S.ADMITTED,
    (_S.ADMITTED, Requested): _S.ADMITTED,
    (_S.ADMITTED, Refusal): _S.REFUSED,
    (_S.ADMITTED, Broken): _S.CLOSED,
    (_S.ADMITTED, DeadlinePassed): _S.CLOSED,
}


class LinkSession:
    """`name` is for the story: the frontend's address. `opened_at` and every `now` are of one monotonic clock."""

    def __init__(self, name: str, opened_at: float) -> None:
        self._machine = Machine(name, TABLE, SessionState.CONNECTING)
        self._deadline: float | None = opened_at + CONNECT_S
        self._admitted: Admitted | None = None
        self._control_number = 0

    @property
    def state(self) -> SessionState:
        return self._machine.state

    @property
    def frontend_instance(self) -> str | None:
        """Who admitted this session; None before."""
        return None if self._admitted is None else self._admitted.frontend_instance

    def next_deadline(self) -> float | None:
        return self._deadline

    def restart_deadline(self, now: float) -> None:
        """After the whole process stood still: nobody else is to blame for the silence."""
        match self.state:
            case SessionState.CONNECTING:
                self._deadline = now + CONNECT_S
            case SessionState.GREETED:
                self._deadline = now + ADMIT_S
            case SessionState.ADMITTED:
                self._deadline = now + SILENCE_S
            case _:
                self._deadline = None

    def count_control_frame(self) -> None:
        """To be called for every message of the frontend but PING, before it is decoded: a malformed one counts too."""
        self._control_number += 1

    def receive(self, message: FrontendMessage, now: float) -> list[Effect]:
        """A decoded message. Raises `MalformedFrame` for one that is out of turn; then nothing changed."""
        event: Event
        match message:
            case Ping():
                event = Pinged(message)
            case Admitted():
                event = Admission(message)
            case Refused():
                event = Refusal(message)
            case _:
                event = Requested(message)
        if not self._machine.allows(type(event)):
            raise MalformedFrame(f"{type(message).__name__} while {self.state.value}")
        return self.on(event, now)

    def on(self, event: Event, now: float) -> list[Effect]:
        """Raises `InvalidTransition` for a pair outside the table; then nothing changed."""
        before, after = self._machine.move(type(event))
        was_open = before is SessionState.ADMITTED
        if after is not before:
            self.restart_deadline(now)
        match event:
            case Connected():
                return [SendHello()]
            case Admission(admitted):
                return self._on_admission(admitted, now)
            case Pinged(ping):
                return self._on_ping(ping, now)
            case Requested(message):
                return [Deliver(message)]
            case Refusal(refused):
                return [Close(f"{refused.reason}: {refused.message}", was_open, was_refused=True)]
            case Broken(reason):
                return [Close(reason, was_open)]
            case Denied(reason):
                return [Close(reason, was_open, was_refused=True)]
            case DeadlinePassed():
                return [Close(f"silence while {before.value}", was_open)]

    def _on_admission(self, admitted: Admitted, now: float) -> list[Effect]:
        if admitted.protocol_version not in PROTOCOL_VERSIONS:
            self._machine.move(Broken)
            self._deadline = None
            return [Close(f"protocol version {admitted.protocol_version} was not offered", False, was_refused=True)]
        self._admitted = admitted
        return [Open(admitted)]

    def _on_ping(self, ping: Ping, now: float) -> list[Effect]:
        if ping.last_control_number != self._control_number:
            story = f"{ping.last_control_number} control frames were sent and {self._control_number} came"
            return self.on(Broken(story), now)
        self._deadline = now + SILENCE_S
        return [Answer(ping.ping_number, ping.last_control_number)]
