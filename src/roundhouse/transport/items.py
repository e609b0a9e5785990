"""What passes between an engine's busy loop and its two socket threads: the items of both queues, and the load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from roundhouse.protocol.frames import FrontendMessage
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.limits import MESSAGE_OVERHEAD_BYTES
from roundhouse.protocol.messages import Admitted, EngineCoreOutputs, SchedulerStats

if TYPE_CHECKING:
    from roundhouse.transport.sockets import Socket


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A frontend admitted this engine."""

    client_index: ClientIndex


@dataclass(frozen=True, slots=True)
class SessionLost:
    """That frontend hears nothing more by this session: its requests end. A new session gets a new client index."""

    client_index: ClientIndex


@dataclass(frozen=True, slots=True)
class Received:
    """A message of an open session. `nbytes`: of its frames, for `Backlog`."""

    client_index: ClientIndex
    message: FrontendMessage
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """A socket thread ended by an error of our own: the engine cannot be reached any more and has to exit."""

    message: str


InputItem = SessionOpened | SessionLost | Received | LinkFailed


class InputQueue(Protocol):
    """Where the input thread puts; it is never blocked."""

    def put(self, item: InputItem, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Outputs:
    """Sent by the session of `client_index`, dropped when that one is gone. Arrays in `outputs` stay as they are."""

    client_index: ClientIndex
    outputs: EngineCoreOutputs


@dataclass(frozen=True, slots=True)
class PongDue:
    client_index: ClientIndex
    ping_number: int
    last_control_number: int


@dataclass(frozen=True, slots=True)
class OpenPush:
    """Hands a PUSH over for good: from here on the output thread alone uses and closes it."""

    client_index: ClientIndex
    push: Socket
    admitted: Admitted


@dataclass(frozen=True, slots=True)
class ClosePush:
    """`monitor`: the PUSH's, to be closed once the PUSH no longer writes to it."""

    client_index: ClientIndex
    monitor: Socket


@dataclass(frozen=True, slots=True)
class Drain:
    """Tells every frontend, later ones too, that this engine takes no new request."""

    reason: str
    leaves_in_s: float


@dataclass(frozen=True, slots=True)
class LastWords:
    """ENGINE_CORE_DEAD to every frontend; the output thread ends."""

    message: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The output thread ends once what stands before this in the queue is sent."""


OutputItem = Outputs | PongDue | OpenPush | ClosePush | Drain | LastWords | Stop


@dataclass(slots=True)
class BusyLoopStatus:
    """Written by the busy loop, read by the output thread for each Pong; single attributes, so no lock.

    step_started: when the step that runs now began, on the engine's monotonic clock; None between steps.
    """

    load: SchedulerStats = field(default_factory=SchedulerStats)
    step_started: float | None = None

    def step_s(self, now: float) -> float:
        started = self.step_started
        return 0.0 if started is None else max(0.0, now - started)


class Backlog:
    """Bytes that wait for the busy loop, by session. Each of the two totals has one writer, so no lock.

    The input thread calls `put` and ends a session whose bytes pass the limit; the busy loop calls `taken` for each
    item that it takes from its queue.
    """

    def __init__(self) -> None:
        self._put: dict[ClientIndex, int] = {}
        self._taken: dict[ClientIndex, int] = {}

    def put(self, client_index: ClientIndex, nbytes: int) -> int:
        """Returns the bytes that wait, these and the overhead of each message included."""
        total = self._put[client_index] = self._put.get(client_index, 0) + nbytes + MESSAGE_OVERHEAD_BYTES
        return total - self._taken.get(client_index, 0)

    def taken(self, item: InputItem) -> None:
        """`SessionLost` is the last item of its session; both totals go with it."""
        if isinstance(item, Received):
            taken = self._taken.get(item.client_index, 0)
            self._taken[item.client_index] = taken + item.nbytes + MESSAGE_OVERHEAD_BYTES
        elif isinstance(item, SessionLost):
            self._put.pop(item.client_index, None)
            self._taken.pop(item.client_index, None)
