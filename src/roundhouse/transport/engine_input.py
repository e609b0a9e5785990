"""`process_input_sockets`, the engine's input thread: one DEALER and one PUSH for each frontend, with their monitors.

It opens and closes sessions, decodes what comes and puts it into the input queue. An admitted session's PUSH goes to
the output thread by the output queue; the two threads share no socket. What to do is decided by `protocol.session` and
`transport.dialer`; here it is done.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from queue import SimpleQueue

import msgspec
import zmq

from roundhouse.clock import Clock
from roundhouse.protocol import session as s
from roundhouse.protocol.errors import ConfigError, MalformedFrame
from roundhouse.protocol.frames import ENGINE_TYPES, FRONTEND_TYPES, FrameDecoder, FrameEncoder, size_of
from roundhouse.protocol.identity import ROUTING_NONCE_BYTES, ClientIndex, EngineIdentity, routing_id
from roundhouse.protocol.limits import MAX_BYTES_WAITING_PER_PEER
from roundhouse.protocol.messages import Admitted, Hello, Ping
from roundhouse.transport import sockets
from roundhouse.transport.address import FrontendAddress, TcpAddress
from roundhouse.transport.dialer import Dialer
from roundhouse.transport.engine_security import Security, handshake_story
from roundhouse.transport.handover import Handover
from roundhouse.transport.items import (
    Backlog,
    ClosePush,
    InputQueue,
    OpenPush,
    OutputItem,
    PongDue,
    Received,
    SessionLost,
    SessionOpened,
)
from roundhouse.transport.keys import Credential, EngineKeys
from roundhouse.transport.mailbox import Mailbox
from roundhouse.transport.malformed import MalformedCounter
from roundhouse.transport.reach import WARN_EVERY_S, insecure_warning
from roundhouse.transport.sockets import Context, Socket
from roundhouse.transport.told import Told

logger = logging.getLogger(__name__)

MESSAGES_A_TURN = 64
"""Of one session, before the others get theirs."""

LATE_S = 0.5
"""A sleep that ends this much after its time: the process stood still."""

LONGEST_SLEEP_S = 10.0

_PING = FRONTEND_TYPES[Ping]

_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a host name stands for now."""

    name: TcpAddress
    found: list[TcpAddress]


@dataclass(frozen=True, slots=True)
class PushBroken:
    """The output thread could not send and closed the PUSH."""

    client_index: ClientIndex
    reason: str


@dataclass(frozen=True, slots=True)
class KeysChanged:
    """For sessions from now on; those that live are handed over, or closed where their server key is gone."""

    keys: EngineKeys


@dataclass(frozen=True, slots=True)
class StopInput:
    pass


EngineMail = Resolved | PushBroken | KeysChanged | StopInput
"""What the input thread is told by others."""


@dataclass(slots=True)
class _Session:
    client_index: ClientIndex
    address: FrontendAddress
    nonce: bytes
    link: s.LinkSession
    dealer: Socket
    push: Socket
    dealer_monitor: Socket
    push_monitor: Socket
    credential: Credential | None = None
    handshakes: set[Socket] = field(default_factory=set)
    push_is_handed_over: bool = False

    @property
    def watched(self) -> tuple[Socket, Socket, Socket]:
        return self.dealer, self.dealer_monitor, self.push_monitor


def process_input_sockets(
    context: Context,
    hello: Hello,
    static: Sequence[FrontendAddress],
    mailbox: Mailbox[EngineMail],
    input_queue: InputQueue,
    output_queue: SimpleQueue[OutputItem],
    *,
    security: Security,
    backlog: Backlog | None,
    random: Callable[[], float],
    clock: Clock,
) -> None:
    """Runs until `StopInput` comes by the mailbox; then every socket that is still its own is closed."""
    thread = _InputThread(context, hello, static, mailbox, input_queue, output_queue, security, backlog, random, clock)
    try:
        thread.run()
    finally:
        thread.close()


class _InputThread:
    def __init__(
        self,
        context: Context,
        hello: Hello,
        static: Sequence[FrontendAddress],
        mailbox: Mailbox[EngineMail],
        input_queue: InputQueue,
        output_queue: SimpleQueue[OutputItem],
        security: Security,
        backlog: Backlog | None,
        random: Callable[[], float],
        clock: Clock,
    ) -> None:
        self._security = security
        self._handover = Handover(security.keys, random)
        self._told = Told()
        self._warn_at = clock() if security.exposed else None
        self._context = context
        self._hello = hello
        self._mailbox = mailbox
        self._input_queue = input_queue
        self._output_queue = output_queue
        self._backlog = backlog
        self._clock = clock
        self._dialer = Dialer(static, random, clock())
        self._sessions: dict[ClientIndex, _Session] = {}
        self._client_indexes = count(1)
        self._poller = zmq.Poller()
        self._poller.register(mailbox.fileno(), zmq.POLLIN)
        self._encoder = FrameEncoder(ENGINE_TYPES)
        self._decoder = FrameDecoder(FRONTEND_TYPES)
        self._malformed = MalformedCounter()
        self._is_stopped = False

    def run(self) -> None:
        while not self._is_stopped:
            self._warn()
            wake_at = self._wake_at()
            ready = dict(self._poller.poll(max(0, ceil((wake_at - self._clock()) * 1000))))
            now = self._clock()
            if now - wake_at > LATE_S:
                for session in self._sessions.values():
                    session.link.restart_deadline(now)
            if self._mailbox.fileno() in ready:
                self._take_mail(now)
            for session in list(self._sessions.values()):
                self._serve(session, ready, now)
            self._judge_deadlines(now)
            for address in self._dialer.due(now):
                self._open(address, self._handover.first(address), now)
            for address, credential in self._handover.due(now):
                self._open(address, credential, now, is_handover=True)

    def close(self) -> None:
        for session in list(self._sessions.values()):
            self._close(session, s.Close("the engine leaves", was_open=False), self._clock())

    def _wake_at(self) -> float:
        deadlines = [session.link.next_deadline() for session in self._sessions.values()]
        moments = [*deadlines, self._dialer.next_due(), self._handover.next_due(), self._warn_at]
        return min((moment for moment in moments if moment is not None), default=self._clock() + LONGEST_SLEEP_S)

    def _warn(self) -> None:
        now = self._clock()
        if self._warn_at is not None and now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_S
            logger.warning("%s", insecure_warning(f"this engine connects to {self._security.exposed}"))

    def _take_mail(self, now: float) -> None:
        for mail in self._mailbox.take():
            match mail:
                case Resolved(name, found):
                    self._dialer.set_source(name, found, now)
                case PushBroken(client_index, reason):
                    session = self._sessions.get(client_index)
                    if session is not None:
                        self._obey(session, session.link.on(s.Broken(reason), now), now)
                case KeysChanged(keys):
                    for client_index in self._handover.set_keys(keys):
                        session = self._sessions[client_index]
                        self._obey(session, session.link.on(s.Broken("its server key was taken away"), now), now)
                case StopInput():
                    self._is_stopped = True

    def _open(
        self, address: FrontendAddress, credential: Credential | None, now: float, *, is_handover: bool = False
    ) -> None:
        client_index = ClientIndex(next(self._client_indexes))
        nonce = secrets.token_bytes(ROUTING_NONCE_BYTES)
        dealer = sockets.make_dealer(self._context, routing_id(EngineIdentity(self._hello.identity), nonce), credential)
        push = sockets.make_push(self._context, credential)
        session = _Session(
            client_index,
            address,
            nonce,
            s.LinkSession(str(address), now),
            dealer,
            push,
            sockets.monitor(dealer, _WATCHED),
            sockets.monitor(push, _WATCHED),
            credential,
        )
        self._sessions[client_index] = session
        self._handover.opened(client_index, address, credential, is_handover=is_handover)
        for socket in session.watched:
            self._poller.register(socket, zmq.POLLIN)
        try:
            there = address
            if credential is not None and isinstance(address, TcpAddress):
                there = address.of_generation(credential.generation)
            sockets.connect(dealer, there.input_endpoint)
            sockets.connect(push, there.output_endpoint)
        except (zmq.ZMQError, ConfigError) as error:
            self._obey(session, session.link.on(s.Broken(str(error)), now), now)

    def _serve(self, session: _Session, ready: dict[object, int], now: float) -> None:
        """What came is read before a broken connection is believed: the last words may be among it."""
        if session.dealer in ready:
            self._receive(session, now)
        for monitor in (session.dealer_monitor, session.push_monitor):
            if monitor in ready and session.client_index in self._sessions:
                self._watch(session, monitor, now)

    def _receive(self, session: _Session, now: float) -> None:
        for _ in range(MESSAGES_A_TURN):
            try:
                frames = session.dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if frames[0] != _PING:
                session.link.count_control_frame()
            try:
                effects = session.link.receive(self._decoder.decode(frames), now)
            except MalformedFrame as error:
                self._malformed.count(error, str(session.address), now)
                continue
            self._obey(session, effects, now, nbytes=size_of(frames))
            if session.client_index not in self._sessions:
                return

    def _watch(self, session: _Session, monitor: Socket, now: float) -> None:
        for event in sockets.read_monitor(monitor):
            if event is zmq.Event.HANDSHAKE_SUCCEEDED:
                session.handshakes.add(monitor)
                if len(session.handshakes) == 2:
                    self._obey(session, session.link.on(s.Connected(), now), now)
            else:
                self._obey(session, session.link.on(self._ending(session, event, now), now), now)
                return

    def _ending(self, session: _Session, event: zmq.Event, now: float) -> s.Event:
        story = handshake_story(event, session.credential)
        if story is None:
            return s.Broken(str(event.name).lower().replace("_", " "))
        if event is zmq.Event.HANDSHAKE_FAILED_AUTH and session.link.state is s.SessionState.CONNECTING:
            return s.Denied(story)
        if self._told.is_due(f"{session.address} {event.name}", now):
            logger.warning("cannot connect to %s: %s", session.address, story)
        return s.Broken(story)

    def _judge_deadlines(self, now: float) -> None:
        for session in list(self._sessions.values()):
            deadline = session.link.next_deadline()
            if deadline is not None and deadline <= now and not sockets.has_input(session.dealer):
                self._obey(session, session.link.on(s.DeadlinePassed(), now), now)

    def _obey(self, session: _Session, effects: list[s.Effect], now: float, *, nbytes: int = 0) -> None:
        for effect in effects:
            match effect:
                case s.SendHello():
                    self._greet(session, now)
                case s.Open(admitted):
                    self._admit(session, admitted, now)
                case s.Answer(ping_number, last_control_number):
                    self._output_queue.put(PongDue(session.client_index, ping_number, last_control_number))
                case s.Deliver(message):
                    self._deliver(session, Received(session.client_index, message, nbytes), now)
                case s.Close():
                    self._close(session, effect, now)

    def _greet(self, session: _Session, now: float) -> None:
        frames = self._encoder.encode(msgspec.structs.replace(self._hello, nonce=session.nonce))
        try:
            session.dealer.send(b"", zmq.NOBLOCK)
            session.dealer.send_multipart(frames, zmq.NOBLOCK)
            session.push.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self._obey(session, session.link.on(s.Broken("gone before the Hello"), now), now)

    def _admit(self, session: _Session, admitted: Admitted, now: float) -> None:
        logger.debug("%s admitted this engine, session %d", session.address, admitted.session_id)
        self._dialer.admitted(session.address, admitted.frontend_instance)
        self._handover.admitted(session.client_index)
        self._dialer.set_source(session.client_index, self._security.reachable(admitted.frontends), now)
        session.push_is_handed_over = True
        # In this order: no output of the new session can overtake its PUSH.
        self._output_queue.put(OpenPush(session.client_index, session.push, admitted))
        self._input_queue.put(SessionOpened(session.client_index))

    def _deliver(self, session: _Session, item: Received, now: float) -> None:
        self._input_queue.put(item)
        if self._backlog is None:
            return
        waiting = self._backlog.put(item.client_index, item.nbytes)
        if waiting > MAX_BYTES_WAITING_PER_PEER:
            self._obey(session, session.link.on(s.Broken(f"{waiting} bytes wait for the busy loop"), now), now)

    def _close(self, session: _Session, effect: s.Close, now: float) -> None:
        del self._sessions[session.client_index]
        for socket in session.watched:
            self._poller.unregister(socket)
        sockets.stop_monitor(session.dealer)
        session.dealer.close()
        session.dealer_monitor.close()
        if session.push_is_handed_over:
            self._output_queue.put(ClosePush(session.client_index, session.push_monitor))
        else:
            sockets.stop_monitor(session.push)
            session.push.close()
            session.push_monitor.close()
        is_unheld = self._handover.closed(session.client_index, now)
        if effect.was_open:
            level = logging.WARNING if is_unheld else logging.INFO
            logger.log(level, "the session with %s is over: %s", session.address, effect.reason)
            self._input_queue.put(SessionLost(session.client_index))
        elif effect.was_refused and self._told.is_due(f"{session.address} {effect.reason}", now):
            logger.warning("%s refused this engine: %s", session.address, effect.reason)
        self._dialer.set_source(session.client_index, [], now)
        if is_unheld:
            self._dialer.closed(session.address, was_refused=effect.was_refused, now=now)
