"""An engine process with real link sessions and a busy loop that is played: token k of a request is always the same.

What `transport.engine_input`, `transport.engine_output` and `engine.proc` do with sockets and threads is done here with
queues. The input thread's inbox is kept apart from the busy loop, since a Pong overtakes what waits in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from roundhouse.protocol import session as s
from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.frames import EngineMessage, FrontendMessage
from roundhouse.protocol.messages import (
    AbortRequests,
    Admitted,
    Died,
    Draining,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    Hello,
    OutputError,
    Ping,
    Pong,
    SchedulerStats,
)
from roundhouse.protocol.sampling import FinishReason
from tests.model.wire import Connection, sent


def token(request: EngineCoreRequest, index: int) -> int:
    """Token `index` of a request, on whichever engine."""
    return request.prompt_token_ids[0] * 100 + index


@dataclass(slots=True)
class EngineSession:
    """What both socket threads know of one session. push_is_open: the output thread has its PUSH."""

    client_index: int
    connection: Connection
    link: s.LinkSession
    admitted: Admitted | None = None
    push_is_open: bool = False
    output_number: int = 0

    def key(self) -> tuple[object, ...]:
        return (self.connection.name, self.link.state, self.link._control_number, self.output_number)


@dataclass(slots=True)
class Computing:
    """A request in the engine's core. num_tokens: outputs so far, those of earlier attempts counted."""

    request: EngineCoreRequest
    num_tokens: int


SESSION_LOST = "session lost"


@dataclass(slots=True)
class PlayedEngine:
    """One process. tokens_a_step: what each step brings for each request."""

    hello: Hello
    tokens_a_step: int
    open_connection: Callable[[], Connection]
    sessions: dict[int, EngineSession] = field(default_factory=dict)
    inbox: list[tuple[int, FrontendMessage | str]] = field(default_factory=list)
    computing: dict[tuple[int, str], Computing] = field(default_factory=dict)
    is_running: bool = True
    is_draining: bool = False
    num_dials: int = 0

    @property
    def has_work(self) -> bool:
        return self.is_running and bool(self.inbox or self.computing or self.is_draining)

    def key(self) -> tuple[object, ...]:
        return (
            self.hello.epoch,
            self.is_running,
            self.is_draining,
            tuple([(client, sent(m).key if not isinstance(m, str) else m) for client, m in self.inbox]),
            tuple([(*place, c.request.attempt, c.num_tokens) for place, c in self.computing.items()]),
            tuple([session.key() for session in self.sessions.values()]),
        )

    def dial(self, now: float) -> None:
        """Opens a session; both handshakes are done at once."""
        self.num_dials += 1
        connection = self.open_connection()
        session = EngineSession(self.num_dials, connection, s.LinkSession(connection.name, now))
        self.sessions[session.client_index] = session
        self._obey(session, session.link.on(s.Connected(), now), now)

    def receive(self, session: EngineSession, message: FrontendMessage, now: float) -> None:
        """One message by the DEALER."""
        if not isinstance(message, Ping):
            session.link.count_control_frame()
        try:
            effects = session.link.receive(message, now)
        except MalformedFrame:
            return
        self._obey(session, effects, now)

    def on_broken(self, session: EngineSession, now: float) -> None:
        self._obey(session, session.link.on(s.Broken("disconnected"), now), now)

    def on_silence(self, session: EngineSession, now: float) -> None:
        self._obey(session, session.link.on(s.DeadlinePassed(), now), now)

    def step(self) -> None:
        """The busy loop once: what waits, then one step; a drained engine with nothing left leaves."""
        answers: dict[int, list[EngineCoreOutput]] = {}
        for client_index, message in self.inbox:
            self._handle(client_index, message, answers)
        self.inbox.clear()
        self._send_outputs(answers)
        outputs: dict[int, list[EngineCoreOutput]] = {}
        for place, computing in list(self.computing.items()):
            output = self._advance(computing)
            outputs.setdefault(place[0], []).append(output)
            if output.finished:
                del self.computing[place]
        self._send_outputs(outputs)
        if self.is_draining and not self.computing:
            self.exit()

    def drain(self) -> None:
        self.is_draining = True
        for session in self.sessions.values():
            self._send_draining(session)

    def abort_all(self) -> None:
        """The end of a drain's grace: what still runs is given back."""
        outputs: dict[int, list[EngineCoreOutput]] = {}
        for place, computing in self.computing.items():
            outputs.setdefault(place[0], []).append(_last(computing.request, computing.num_tokens, FinishReason.ABORT))
        self.computing.clear()
        self._send_outputs(outputs)

    def die(self) -> None:
        """A fatal error: last words, then the end."""
        for session in self.sessions.values():
            if session.push_is_open and session.admitted is not None:
                self._send(session, Died(session.admitted.session_id, "a fatal error"))
        self.exit()

    def exit(self) -> None:
        """The process ends, killed or not; what left it already may still arrive."""
        self.is_running = False
        for session in self.sessions.values():
            session.connection.end()
        self.sessions.clear()
        self.inbox.clear()
        self.computing.clear()

    def _obey(self, session: EngineSession, effects: list[s.Effect], now: float) -> None:
        for effect in effects:
            match effect:
                case s.SendHello():
                    hello = sent(msgspec.structs.replace(self.hello, nonce=session.connection.routing_id[-16:]))
                    session.connection.by_dealer.append(hello)
                    session.connection.by_push.append(hello)
                case s.Open(admitted):
                    session.admitted = admitted
                    session.push_is_open = True
                    if self.is_draining:
                        self._send_draining(session)
                case s.Answer(ping_number, last_control_number):
                    assert session.admitted is not None
                    numbers = (session.admitted.session_id, ping_number, last_control_number, session.output_number)
                    self._send(session, Pong(*numbers, SchedulerStats()))
                case s.Deliver(message):
                    self.inbox.append((session.client_index, message))
                case s.Close():
                    del self.sessions[session.client_index]
                    session.connection.end()
                    if effect.was_open:
                        self.inbox.append((session.client_index, SESSION_LOST))

    def _handle(
        self, client_index: int, message: FrontendMessage | str, answers: dict[int, list[EngineCoreOutput]]
    ) -> None:
        match message:
            case EngineCoreRequest():
                start = len(message.output_token_ids)
                if self.is_draining:
                    answers.setdefault(client_index, []).append(_last(message, start, FinishReason.ABORT))
                elif (client_index, message.request_id) in self.computing:
                    error = OutputError("duplicate_request_id", "that id is live")
                    answers.setdefault(client_index, []).append(_last(message, start, FinishReason.ERROR, error))
                else:
                    self.computing[client_index, message.request_id] = Computing(message, start)
            case AbortRequests(request_ids):
                for request_id in request_ids:
                    self.computing.pop((client_index, request_id), None)
            case _:
                assert message == SESSION_LOST
                answers.pop(client_index, None)
                for place in [place for place in self.computing if place[0] == client_index]:
                    del self.computing[place]

    def _advance(self, computing: Computing) -> EngineCoreOutput:
        request, start = computing.request, computing.num_tokens
        assert request.sampling_params is not None
        total = request.sampling_params.max_tokens or 1
        end = min(total, start + self.tokens_a_step)
        computing.num_tokens = end
        tokens = [token(request, index) for index in range(start, end)]
        reason = FinishReason.LENGTH if end == total else None
        return EngineCoreOutput(request.request_id, request.attempt, start, tokens, finish_reason=reason)

    def _send_outputs(self, outputs_by_client: dict[int, list[EngineCoreOutput]]) -> None:
        for client_index, outputs in outputs_by_client.items():
            session = self.sessions.get(client_index)
            if session is None or session.admitted is None or not session.push_is_open:
                continue
            session.output_number += 1
            admitted = session.admitted
            place = (admitted.session_id, admitted.engine_index, self.hello.epoch, session.output_number)
            self._send(session, EngineCoreOutputs(*place, outputs=outputs))

    def _send_draining(self, session: EngineSession) -> None:
        if session.push_is_open and session.admitted is not None:
            self._send(session, Draining(session.admitted.session_id, "shutdown", 30.0))

    def _send(self, session: EngineSession, message: EngineMessage) -> None:
        session.connection.by_push.append(sent(message))


def _last(
    request: EngineCoreRequest, num_tokens: int, reason: FinishReason, error: OutputError | None = None
) -> EngineCoreOutput:
    return EngineCoreOutput(request.request_id, request.attempt, num_tokens, [], finish_reason=reason, error=error)
