"""`AsyncMPClient`: the engines behind sockets. It drives the link, the engine set and the table of live requests, and
decides nothing itself.

Requests leave by `input_socket` (ROUTER) as [routing id][type][payload …]; outputs come by `output_socket` (PULL) and
wait in `outputs_queue`. An error of the reading side goes into the same queue, so that the consumer meets it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from roundhouse.clock import Clock, monotonic
from roundhouse.frontend.core_client import EngineCoreClient, EngineView
from roundhouse.frontend.dispatcher import Dispatcher
from roundhouse.frontend.engine_set import SESSION_OVER, Effect, EngineSet, Lost, Refuse, Welcome
from roundhouse.frontend.guard import KeyCounters
from roundhouse.frontend.live_request import Resumed
from roundhouse.frontend.live_requests import LiveRequests, WaitLimits
from roundhouse.frontend.liveness import Liveness
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import Member, MembershipState, check_load
from roundhouse.frontend.mesh_keys import MeshKeys
from roundhouse.frontend.mesh_limits import MeshLimits, check_hello_size, is_hello
from roundhouse.frontend.outputs_queue import OutputsQueue
from roundhouse.frontend.utility_calls import Answer, UtilityCalls
from roundhouse.protocol.errors import (
    EngineDeadError,
    EngineGenerateError,
    MalformedFrame,
    NoEngine,
    ShuttingDown,
)
from roundhouse.protocol.frames import (
    ENGINE_TYPES,
    FRONTEND_TYPES,
    EngineMessage,
    FrameDecoder,
    FrameEncoder,
    FrontendMessage,
    size_of,
    validate_alive,
)
from roundhouse.protocol.identity import WITHOUT_KEYS, Peer
from roundhouse.protocol.limits import (
    MAX_BYTES_WAITING_PER_PEER,
    MAX_HELLO_BYTES,
    MAX_IDENTITY_BYTES,
    MAX_OUTPUT_PAYLOAD_BYTES,
)
from roundhouse.protocol.messages import (
    Died,
    Draining,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    Hello,
    Pong,
    Refused,
    SchedulerStats,
    UtilityRequest,
)
from roundhouse.transport.frontend_link import FrontendLink
from roundhouse.transport.key_folder import KeyFolder
from roundhouse.transport.keys import FrontendKeys
from roundhouse.transport.malformed import MalformedCounter
from roundhouse.transport.reach import WARN_EVERY_S, insecure_warning
from roundhouse.transport.socket_reader import Frames
from roundhouse.transport.sockets import Socket

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Since the client was made; they never fall.

    num_late_outputs: for requests that are not live any more, or not with that engine.
    num_late_messages: whole messages of sessions that are over.
    num_requests_lost: that were accepted and then given up. num_resumes: that went on elsewhere, by cause.
    num_replayed_tokens: prompt and outputs that the next engines were given again.
    """

    num_admitted: int = 0
    num_refused: int = 0
    num_lost: int = 0
    num_requests_lost: int = 0
    num_malformed: int = 0
    num_late_outputs: int = 0
    num_late_messages: int = 0
    num_replayed_tokens: int = 0
    num_resumes: dict[LossCause, int] = field(default_factory=lambda: dict.fromkeys(LossCause, 0))


class AsyncMPClient(EngineCoreClient):
    """Listens on `address` at once (`transport.address`), reads from `start` on, or from the first call of a coroutine.

    expected_model: engines with another model name are refused; None takes the first engine's.
    wait_limits: how long requests wait while no engine can take them.
    insecure_mesh, keys: see `FrontendLink`; the folder is read again while the client lives.
    frontends: addresses of all known frontends, passed on to engines.
    session_ids: see `EngineSet`; None makes them random, since on PULL the number is all that tells who speaks.
    Raises `ConfigError` when it cannot listen.
    """

    def __init__(
        self,
        address: str,
        *,
        expected_model: str | None = None,
        insecure_mesh: bool = False,
        keys: KeyFolder[FrontendKeys] | None = None,
        frontends: Sequence[str] = (),
        wait_limits: WaitLimits | None = None,
        session_ids: Iterator[int] | None = None,
        clock: Clock = monotonic,
        make_link: Callable[..., FrontendLink] = FrontendLink,
    ) -> None:
        self._keys = MeshKeys(keys if address.startswith("tcp://") else None)
        self.link = make_link(address, insecure_mesh=insecure_mesh, keys=self._keys.guard.keys)
        self._limits = MeshLimits()
        self.instance = secrets.token_hex(8)
        self.counters = Counters()
        self.resume_listeners: list[Callable[[Resumed], None]] = []
        self.outputs_queue = OutputsQueue()
        self._engines = EngineSet(
            self.instance, session_ids or random_session_ids(), model=expected_model, frontends=frontends
        )
        self._clock = clock
        self._live = LiveRequests(wait_limits)
        self._dispatcher = Dispatcher(
            self._engines,
            self._live,
            clock,
            send=self._send_control,
            give_up=self._on_given_up,
            on_resumed=self._on_resumed,
        )
        self._calls = UtilityCalls()
        self._encoder = FrameEncoder(FRONTEND_TYPES)
        self._decoder = FrameDecoder(ENGINE_TYPES, max_payload_bytes=MAX_OUTPUT_PAYLOAD_BYTES)
        self._malformed = MalformedCounter()
        self._liveness = Liveness(
            self._engines,
            self.link,
            clock,
            later=self._later,
            encode_ping=self._encoder.encode,
            instance=self.instance,
            obey=self._obey,
        )
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None

    @property
    def num_waiting(self) -> int:
        """Live requests that no engine has."""
        return self._live.num_waiting

    @property
    def input_socket(self) -> Socket:
        """The ROUTER."""
        return self.link.input_socket

    @property
    def output_socket(self) -> Socket:
        """The PULL."""
        return self.link.output_socket

    def start(self) -> None:
        """Reads in the running event loop from here on. Idempotent. Raises what ended the client."""
        if self._failure is not None:
            raise self._failure
        if self._loop is not None:
            return
        self._loop = asyncio.get_running_loop()
        self.link.start(
            on_input=self._process_input_socket,
            on_output=self.process_outputs_socket,
            on_disconnected=self._liveness.on_disconnected,
            on_failure=self._fail,
        )
        self._liveness.start(self._on_tick)
        self._keys.start(self._post_keys)
        if self.link.is_insecure:
            self._warn_insecure()

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self.start()
        self._dispatcher.add(request)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        if self._loop is None or self._failure is not None:
            return
        self._dispatcher.abort(request_ids)

    async def get_output_async(self) -> EngineCoreOutputs:
        if self.outputs_queue.empty():
            self.start()
        return await self.outputs_queue.get()

    async def call_utility_async(self, method: str, *args: Any, engine_index: int | None = None) -> list[Any]:
        """Raises `NoEngine`, `EngineDeadError` when one is lost meanwhile, `EngineGenerateError` when one fails."""
        self.start()
        members = [
            member
            for member in self._engines.members()
            if not member.is_superseded and (engine_index is None or member.engine_index == engine_index)
        ]
        if not members:
            raise NoEngine("no engine is admitted" if engine_index is None else f"engine {engine_index} is not here")
        answers = await asyncio.gather(*(self._call(member, method, args) for member in members))
        for answer in answers:
            if answer.failure_message is not None:
                raise EngineGenerateError(answer.failure_message)
        return [answer.result for answer in answers]

    def engines(self) -> list[EngineView]:
        now = self._clock()
        sessions: dict[str, list[Member]] = {}
        for member in self._engines.members():
            sessions.setdefault(member.hello.identity, []).append(member)
        return [
            EngineView(
                identity=member.hello.identity,
                engine_index=member.engine_index,
                state=member.state.value,
                hello=member.hello,
                load=member.load,
                num_inflight=sum(each.num_inflight for each in sessions[member.hello.identity]),
                last_heard_s=now - member.heard_at,
                server_key=member.peer.generation,
                num_sessions=len(sessions[member.hello.identity]),
            )
            for member in self._engines.members()
            if not member.is_superseded
        ]

    def drain_engine(self, identity: str) -> bool:
        members = [member for member in self._engines.members() if member.hello.identity == identity]
        for member in members:
            logger.info("engine %s is to be drained", identity)
            self._engines.drain(member)
            self._dispatcher.on_draining(member)
        return bool(members)

    async def wait_for_engine(self) -> Hello:
        self.start()
        while not (takers := self._engines.takers()):
            self._changed.clear()
            await self._changed.wait()
            self.start()
        return takers[0].hello

    def key_counters(self) -> KeyCounters:
        return self._keys.counters(self.link)

    @property
    def num_without_hello(self) -> int:
        """Connections that ended, and no message had come by them."""
        return self.link.num_without_hello

    def limit_counters(self) -> dict[str, int]:
        """What was dropped or cut because it was too much, by limit."""
        return self._limits.counters(self._engines.num_halves_over, self.link.num_cut)

    def shutdown(self) -> None:
        self._keys.stop()
        self.link.close()
        self._end(ShuttingDown("the client was closed"))

    def process_outputs_socket(self, frames: Frames, peer: Peer = WITHOUT_KEYS) -> None:
        """One message of a PULL, and who sent it; the link's reader calls it."""
        now = self._clock()
        if not self._keys.may_speak(peer, now):
            return
        try:
            check_hello_size(frames)
            if is_hello(frames):
                self._greet_on_pull(self._decoder.decode(frames), peer, now)
                return
            # Decoding is what costs the event loop time: only who speaks for its own session has some of it.
            member = self._engines.get(self._decoder.session_of(frames))
            if not self._keys.is_of(member, peer, now) or member is None:
                self.counters.num_late_messages += member is None
                return
            message = self._decoder.decode(frames)
            load = _load_in(message)
            if load is not None:
                check_load(load)
        except MalformedFrame as error:
            self._count_malformed(error, peer.user_id or "PULL", now)
            return
        if not validate_alive(frames):
            assert isinstance(message, Died)
            self._obey(self._engines.on_died(member, message))
            return
        match message:
            case EngineCoreOutputs():
                self._on_outputs(member, message, size_of(frames))
            case Pong():
                was_taker = member.is_taker
                self._obey(self._engines.on_pong(member, message, now))
                self._changed.set()
                if member.is_taker and not was_taker:
                    self._dispatcher.on_taker()
            case Draining():
                logger.info("engine %s drains: %s", member.hello.identity, message.reason)
                self._engines.drain(member)
                self._dispatcher.on_draining(member)

    def _process_input_socket(self, frames: Frames, peer: Peer = WITHOUT_KEYS) -> None:
        """One message of a ROUTER: [routing id][empty] as an engine registers, then its Hello."""
        now = self._clock()
        routing_id = bytes(frames[0])
        if len(frames) == 2 and not frames[1]:
            return
        if not self._keys.may_speak(peer, now):
            return
        try:
            message = self._decoder.decode(frames[1:], max_bytes=MAX_HELLO_BYTES)
            if not isinstance(message, Hello):
                raise MalformedFrame(f"{type(message).__name__} by DEALER")
            if not self._limits.may_greet(peer, message, now):
                return
            denial = self._keys.check_hello(peer, message, now)
            if denial is None:
                self._obey(self._engines.on_router_hello(routing_id, message, now, peer))
            else:
                self._obey([Refuse(routing_id, Refused(denial.fault, denial.message), peer)])
        except MalformedFrame as error:
            self._count_malformed(error, peer.user_id or f"ROUTER {_claimed(routing_id)!r}", now)

    def _greet_on_pull(self, hello: Hello, peer: Peer, now: float) -> None:
        if self._limits.may_greet(peer, hello, now) and self._keys.check_hello(peer, hello, now) is None:
            self._obey(self._engines.on_pull_hello(hello, now, peer))

    def _post_keys(self, keys: FrontendKeys) -> None:
        """From the watch's thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._take_keys, keys)

    def _take_keys(self, keys: FrontendKeys) -> None:
        if self._failure is not None:
            return
        self._keys.guard.set_keys(keys)
        self.link.set_keys(keys)
        verdict = Verdict(LossCause.REVOKED, "its key is no longer allowed")
        for member in self._engines.members():
            if not self._keys.guard.knows(member.peer):
                self._obey(self._engines.lose(member, verdict, tell=False))

    def _on_tick(self) -> None:
        self._dispatcher.on_tick()
        self._obey(self._engines.dismiss_superseded())
        self.link.watch()

    def _warn_insecure(self) -> None:
        logger.warning("%s", insecure_warning(f"engines connect to {self.link.address}"))
        self._later(WARN_EVERY_S, self._warn_insecure)

    def _on_outputs(self, member: Member, outputs: EngineCoreOutputs, nbytes: int) -> None:
        effects = self._engines.on_outputs(member, outputs)
        if effects:
            self._obey(effects)
            return
        if outputs.utility_output is not None:
            self._calls.answer(member, outputs.utility_output)
            return
        accepted = self._dispatcher.on_outputs(member, outputs)
        self.counters.num_late_outputs += accepted.num_late
        waiting = self.outputs_queue.put(accepted.outputs, member.session_id, nbytes)
        if accepted.returned:
            self._dispatcher.place_waiting()
        if waiting > MAX_BYTES_WAITING_PER_PEER:
            reason = f"{waiting} bytes of it wait for the output handler"
            self._obey(self._engines.lose(member, Verdict(LossCause.OVERRUN, reason)))

    def _obey(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Welcome(member, admitted):
                    self._dispatcher.on_admitted(member)
                    self.counters.num_admitted += 1
                    logger.info("engine %s is admitted as %d", member.hello.identity, member.engine_index)
                    if self._send_control(member, admitted):
                        self._liveness.ping(member)
                    self._changed.set()
                    self._dispatcher.on_taker()
                case Refuse(routing_id, refused, peer):
                    self.counters.num_refused += refused.reason != SESSION_OVER
                    self.link.send(routing_id, self._encoder.encode(refused), generation=peer.generation)
                case Lost(member, verdict):
                    self._on_lost(member, verdict)

    def _on_lost(self, member: Member, verdict: Verdict) -> None:
        identity, num_held = member.hello.identity, member.num_inflight
        if member.state is MembershipState.LEFT:
            logger.info("engine %s has left; %d requests go elsewhere", identity, num_held)
        else:
            logger.warning("engine %s is lost: %s; %d requests go elsewhere", identity, verdict.reason, num_held)
            self.counters.num_lost += 1
        self._calls.fail(EngineDeadError(f"engine {identity} is lost: {verdict.reason}"), member)
        self._dispatcher.on_lost(member, verdict)

    def _on_given_up(self, outputs: list[EngineCoreOutput]) -> None:
        self.counters.num_requests_lost += len(outputs)
        self.outputs_queue.put(EngineCoreOutputs(outputs=outputs))

    def _on_resumed(self, resumed: Resumed) -> None:
        self.counters.num_resumes[resumed.cause] += 1
        self.counters.num_replayed_tokens += resumed.num_replayed_tokens
        for listener in self.resume_listeners:
            listener(resumed)

    def _call(self, member: Member, method: str, args: tuple[Any, ...]) -> Answer:
        call_id, answer = self._calls.open(member)
        if not self._send_control(member, UtilityRequest(call_id, method, list(args))) and not answer.done():
            answer.set_exception(EngineDeadError(f"engine {member.hello.identity} is lost"))
        return answer

    def _send_control(self, member: Member, message: FrontendMessage) -> bool:
        """False when nothing can be sent to `member`. Raises `MessageTooLarge`; then nothing was sent."""
        if not member.is_alive or member.is_unreachable:
            return False
        frames = self._encoder.encode(message, max_bytes=member.max_message_bytes)
        member.count_control_frame()
        return self._liveness.judge_send(member, self._liveness.send(member, frames))

    def _later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        def call() -> None:
            if self._failure is not None:
                return
            try:
                callback()
            except Exception as error:
                self._fail(error)

        assert self._loop is not None
        return self._loop.call_later(delay_s, call)

    def _fail(self, error: Exception) -> None:
        """An error of our own: nothing more will come."""
        logger.error("the client's reader failed", exc_info=error)
        self._end(EngineDeadError(f"the client's reader failed: {error!r}"))

    def _end(self, error: EngineDeadError | ShuttingDown) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._calls.fail(error)
        self.outputs_queue.put_error(error)
        self._changed.set()

    def _count_malformed(self, error: Exception, peer: str, now: float) -> None:
        self.counters.num_malformed += 1
        self._malformed.count(error, peer, now)


def random_session_ids() -> Iterator[int]:
    """Numbers of 63 bits that nobody can guess, from 1 up, none of them twice."""
    used = {0}
    while True:
        session_id = secrets.randbits(63)
        if session_id not in used:
            used.add(session_id)
            yield session_id


def _claimed(routing_id: bytes) -> bytes:
    """The identity in a routing id, which is all of it that does not change with each connection."""
    return routing_id.split(b"\0", 1)[0][:MAX_IDENTITY_BYTES]


def _load_in(message: EngineMessage) -> SchedulerStats | None:
    match message:
        case EngineCoreOutputs():
            return message.scheduler_stats
        case Pong():
            return message.load
        case _:
            return None
