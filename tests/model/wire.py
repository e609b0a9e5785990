"""The connections between played engines and a played frontend: what was sent waits until the explorer delivers it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from roundhouse.protocol.frames import EngineMessage, FrontendMessage
from roundhouse.protocol.messages import (
    AbortRequests,
    Admitted,
    Died,
    Draining,
    EngineCoreOutputs,
    EngineCoreRequest,
    Hello,
    Ping,
    Pong,
    Refused,
)

Message = EngineMessage | FrontendMessage


class Sent(NamedTuple):
    """A message on its way, with a key: two messages with equal keys do the same to whoever gets them."""

    message: Message
    key: tuple[object, ...]


Queue = deque[Sent]


@dataclass(slots=True)
class Connection:
    """One link session's sockets: three queues that keep order, and nothing holds them together but that.

    is_up: false once either side ended it. What the engine had sent may still be read then; what was on its way to the
    engine is gone.
    """

    name: str
    routing_id: bytes
    is_up: bool = True
    to_engine: Queue = field(default_factory=Queue)
    by_dealer: Queue = field(default_factory=Queue)
    by_push: Queue = field(default_factory=Queue)

    @property
    def is_spent(self) -> bool:
        """Nobody can do anything with it any more."""
        return not (self.is_up or self.by_dealer or self.by_push)

    def queue(self, direction: str) -> Queue:
        return {"to engine": self.to_engine, "by dealer": self.by_dealer, "by push": self.by_push}[direction]

    def end(self) -> None:
        self.is_up = False
        self.to_engine.clear()

    def key(self) -> tuple[object, ...]:
        queues = (self.to_engine, self.by_dealer, self.by_push)
        return (self.name, self.is_up, *(tuple([sent.key for sent in queue]) for queue in queues))


def sent(message: Message) -> Sent:
    return Sent(message, (type(message).__name__, *_facts(message)))


def _facts(message: Message) -> tuple[object, ...]:
    match message:
        case EngineCoreOutputs():
            outputs = [
                (o.request_id, o.attempt, o.first_token_index, len(o.new_token_ids), o.finish_reason)
                for o in message.outputs
            ]
            return (message.session_id, message.engine_index, message.epoch, message.sequence_number, tuple(outputs))
        case Pong():
            return (message.session_id, message.ping_number, message.last_control_number, message.last_output_number)
        case Ping():
            return (message.last_control_number, message.ping_number)
        case EngineCoreRequest():
            return (message.request_id, message.attempt, len(message.output_token_ids))
        case AbortRequests(request_ids):
            return tuple(request_ids)
        case Hello():
            return (message.identity, message.epoch, message.nonce)
        case Admitted():
            return (message.session_id, message.engine_index, message.frontend_instance)
        case Refused(reason):
            return (reason,)
        case Draining(session_id) | Died(session_id):
            return (session_id,)
        case _:
            raise AssertionError(f"no one sends {message}")


def describe(message: Message) -> str:
    """A few words for a trace."""
    match message:
        case EngineCoreOutputs():
            tokens = [
                f"{o.request_id} attempt {o.attempt} from {o.first_token_index}: {o.new_token_ids}"
                + (f" {o.finish_reason.name}" if o.finish_reason is not None else "")
                for o in message.outputs
            ]
            return f"outputs {message.sequence_number} of session {message.session_id} [{'; '.join(tokens)}]"
        case _:
            facts = ", ".join(str(fact) for fact in _facts(message) if not isinstance(fact, bytes))
            return f"{type(message).__name__}({facts})"
