"""A frontend process with the real engine set, live requests and dispatcher; what `frontend.mp_client` and
`frontend.liveness` do with sockets and timers is done here with queues and events.

It keeps what its clients got, and judges it while it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from roundhouse.frontend.dispatcher import Dispatcher
from roundhouse.frontend.engine_set import Effect, EngineSet, Lost, Refuse, Welcome
from roundhouse.frontend.live_request import LiveRequest
from roundhouse.frontend.live_requests import LiveRequests, WaitLimits
from roundhouse.frontend.loss import DEADLY, LossCause, Verdict
from roundhouse.frontend.membership import LOST_S, STALLED_S, UNACKNOWLEDGED_S, Member, MembershipState
from roundhouse.frontend.suspicion import MAX_DEATHS, MAX_LOSSES
from roundhouse.protocol.errors import MalformedFrame, RequestPoisoned
from roundhouse.protocol.frames import EngineMessage, FrontendMessage
from roundhouse.protocol.messages import (
    Died,
    Draining,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    Hello,
    Pong,
)
from roundhouse.protocol.sampling import FinishReason
from tests.model.played_engine import token
from tests.model.violation import expect

FOR_EVER_S = 1e9
"""Nobody waits too long here: whether a request can end is asked of every state."""


class Shown(NamedTuple):
    """What a client has seen of its request."""

    request: EngineCoreRequest
    num_tokens: int = 0
    ended: str = ""


class PlayedFrontend:
    """transmit: to the peer with that routing id; False when it is gone."""

    def __init__(
        self,
        instance: str,
        session_ids: Iterator[int],
        clock: Callable[[], float],
        transmit: Callable[[bytes, FrontendMessage], bool],
    ) -> None:
        self.instance = instance
        self.engines = EngineSet(instance, session_ids)
        self.live = LiveRequests(WaitLimits(FOR_EVER_S, FOR_EVER_S))
        self.shown: dict[str, Shown] = {}
        self._placed_last: dict[str, tuple[bytes, int]] = {}
        self._num_losses: dict[str, int] = {}
        self._num_deaths: dict[str, int] = {}
        self._clock = clock
        self._transmit = transmit
        self._dispatcher = Dispatcher(
            self.engines,
            self.live,
            clock,
            send=self._send_control,
            give_up=self._on_given_up,
            on_resumed=lambda resumed: None,
        )

    def add(self, request: EngineCoreRequest) -> None:
        self.shown[request.request_id] = Shown(request)
        self._num_losses[request.request_id] = self._num_deaths[request.request_id] = 0
        self._dispatcher.add(request)

    def abort(self, request_id: str) -> None:
        self.shown[request_id] = self.shown[request_id]._replace(ended="aborted")
        self._dispatcher.abort([request_id])

    def receive_by_router(self, routing_id: bytes, message: EngineMessage) -> None:
        assert isinstance(message, Hello)
        try:
            self._obey(self.engines.on_router_hello(routing_id, message, self._clock()))
        except MalformedFrame:
            return

    def receive_by_pull(self, message: EngineMessage, came_by: bytes) -> None:
        """came_by: the routing id of the session that sent it, which no frontend can see: for the judgement alone."""
        if isinstance(message, Hello):
            try:
                self._obey(self.engines.on_pull_hello(message, self._clock()))
            except MalformedFrame:
                pass
            return
        member = self.engines.get(message.session_id)
        if member is None:
            return
        expect(member.routing_id == came_by, f"a session that is over spoke for session {member.session_id}")
        match message:
            case Died():
                self._obey(self.engines.on_died(member, message))
            case EngineCoreOutputs():
                self._on_outputs(member, message, came_by)
            case Pong():
                was_taker = member.is_taker
                self._obey(self.engines.on_pong(member, message, self._clock()))
                if member.is_taker and not was_taker:
                    self._dispatcher.on_taker()
            case Draining():
                self.drain(member)

    def drain(self, member: Member) -> None:
        self.engines.drain(member)
        self._dispatcher.on_draining(member)

    def tick(self) -> None:
        """Verdicts, then a ping to everybody."""
        self._obey(self.engines.judge(self._clock()))
        self._dispatcher.on_tick()
        for member in self.engines.members():
            if not member.is_unreachable:
                self._ping(member)

    def bury(self, member: Member) -> None:
        self._obey(self.engines.lose(member, Verdict(LossCause.UNREACHABLE, "the peer is gone")))

    def stay_silent(self, member: Member) -> None:
        """Nothing was heard of `member` for so long that the next verdict on it is due."""
        silence_s = LOST_S if member.state is not MembershipState.ADMITTED else STALLED_S
        member.heard_at = min(member.heard_at, self._clock() - silence_s)
        self._obey(self.engines.judge(self._clock()))

    def placed(self) -> dict[str, LiveRequest]:
        return {request_id: live for request_id, live in self.live._live.items() if live.member is not None}

    def key(self) -> tuple[object, ...]:
        now = self._clock()
        return (
            self.instance,
            tuple([_member_key(member, now) for member in self.engines.members()]),
            tuple([(identity, member.session_id) for identity, member in sorted(self.engines._holders.items())]),
            tuple(
                [
                    (half, other.routing_id is None, other.hello.epoch, now - other.came_at)
                    for half, other in self.engines._halves._halves.items()
                ]
            ),
            tuple(sorted(self.engines._last_index.items())),
            tuple([_live_key(live) for live in self.live._live.values()]),
            tuple(self.live._waiting),
            tuple([(request_id, s.num_tokens, s.ended) for request_id, s in self.shown.items()]),
            tuple(self._num_losses.items()),
            tuple(self._num_deaths.items()),
            self._dispatcher._turn % max(1, len(self.engines._members)),
        )

    def _on_outputs(self, member: Member, outputs: EngineCoreOutputs, came_by: bytes) -> None:
        effects = self.engines.on_outputs(member, outputs)
        if effects:
            self._obey(effects)
            return
        accepted = self._dispatcher.on_outputs(member, outputs)
        for output in accepted.outputs.outputs:
            self._expect_current(output, came_by)
            self._expect_newest(output, outputs.epoch, member)
            self._show(output)
        if accepted.returned:
            self._dispatcher.place_waiting()

    def _obey(self, effects: Sequence[Effect]) -> None:
        lost: list[Hello] = []
        for effect in effects:
            match effect:
                case Welcome(member, admitted):
                    self._dispatcher.on_admitted(member)
                    self._expect_no_lower(member.hello, lost)
                    if self._send_control(member, admitted):
                        self._ping(member)
                    self._dispatcher.on_taker()
                case Refuse(routing_id, refused):
                    self._transmit(routing_id, refused)
                case Lost(member, verdict):
                    lost.append(member.hello)
                    if verdict.cause in DEADLY:
                        for request_id, live in self.placed().items():
                            self._num_losses[request_id] += live.member is member
                            self._num_deaths[request_id] += live.member is member and verdict.cause is LossCause.DIED
                    self._dispatcher.on_lost(member, verdict)

    def _send_control(self, member: Member, message: FrontendMessage) -> bool:
        expect(member.is_alive, f"{type(message).__name__} for session {member.session_id}, which is over")
        if member.is_unreachable:
            return False
        member.count_control_frame()
        was_sent = self._judge_send(member, self._transmit(member.routing_id, message))
        if was_sent and isinstance(message, EngineCoreRequest):
            self._expect_resumed(message)
            self._placed_last[message.request_id] = (member.routing_id, message.attempt)
        return was_sent

    def _ping(self, member: Member) -> None:
        ping = member.next_ping(self.instance)
        if ping is not None:
            self._judge_send(member, self._transmit(member.routing_id, ping))

    @staticmethod
    def _judge_send(member: Member, was_sent: bool) -> bool:
        if not was_sent:
            member.is_unreachable = True
        return was_sent

    def _expect_resumed(self, message: EngineCoreRequest) -> None:
        shown = self.shown[message.request_id]
        due = [token(shown.request, place) for place in range(shown.num_tokens)]
        resumed = message.output_token_ids
        expect(resumed == due, f"{message.request_id} goes on behind {resumed}, its client has {due}")

    def _expect_current(self, output: EngineCoreOutput, came_by: bytes) -> None:
        expect(
            self._placed_last[output.request_id] == (came_by, output.attempt),
            f"attempt {output.attempt} of {output.request_id} was believed, which is over",
        )

    def _expect_newest(self, output: EngineCoreOutput, epoch: tuple[int, int], sender: Member) -> None:
        for other in self.engines.members():
            expect(
                other.hello.identity != sender.hello.identity or other.hello.epoch <= epoch,
                f"{output.request_id} got an output of epoch {epoch} while {other.hello.epoch} is alive",
            )

    @staticmethod
    def _expect_no_lower(welcome: Hello, lost: list[Hello]) -> None:
        for hello in lost:
            expect(
                hello.identity != welcome.identity or hello.epoch <= welcome.epoch,
                f"epoch {welcome.epoch} took the place of {hello.epoch}, which was alive",
            )

    def _show(self, output: EngineCoreOutput) -> None:
        shown = self.shown.get(output.request_id)
        expect(shown is not None and not shown.ended, f"{output.request_id} got something after its end")
        assert shown is not None
        request = shown.request
        due = [token(request, shown.num_tokens + place) for place in range(len(output.new_token_ids))]
        expect(output.new_token_ids == due, f"{request.request_id} was shown {output.new_token_ids}, due were {due}")
        shown = shown._replace(num_tokens=shown.num_tokens + len(due))
        if due:
            self._num_losses[request.request_id] = self._num_deaths[request.request_id] = 0
        if output.finish_reason is not None:
            expect(
                output.finish_reason is FinishReason.LENGTH,
                f"{request.request_id} ended with {output.finish_reason.name}: {output.error}",
            )
            assert request.sampling_params is not None
            total = request.sampling_params.max_tokens
            expect(shown.num_tokens == total, f"{request.request_id} ended after {shown.num_tokens} of {total} tokens")
            shown = shown._replace(ended="length")
        self.shown[request.request_id] = shown

    def _on_given_up(self, outputs: list[EngineCoreOutput]) -> None:
        for output in outputs:
            shown = self.shown[output.request_id]
            poisoned = output.error is not None and output.error.code == RequestPoisoned.code
            num_losses, num_deaths = self._num_losses[output.request_id], self._num_deaths[output.request_id]
            expect(
                poisoned and (num_deaths >= MAX_DEATHS or num_losses >= MAX_LOSSES) and not shown.ended,
                f"{output.request_id} was given up after {num_losses} losses, {num_deaths} deaths: {output.error}",
            )
            self.shown[output.request_id] = shown._replace(ended="poisoned")


def _member_key(member: Member, now: float) -> tuple[object, ...]:
    short_since = member._short_since
    return (
        member.session_id,
        member.engine_index,
        member.routing_id,
        member.hello.epoch,
        member.state,
        member.control_number,
        member.output_number,
        member.num_inflight,
        member.num_sent_since_load,
        member.is_unreachable,
        _age(now - member.heard_at, (STALLED_S, LOST_S)),
        None if short_since is None else _age(now - short_since, (UNACKNOWLEDGED_S,)),
        member._ping_number,
        tuple([(ping.ping_number, ping.last_control_number) for ping in member._pings_out]),
    )


def _live_key(live: LiveRequest) -> tuple[object, ...]:
    session_id = None if live.member is None else live.member.session_id
    return (
        live.request_id,
        live.machine.state,
        session_id,
        live.attempt,
        tuple(live.suspicion.losses),
        tuple(live.output_token_ids),
        live.resume_key,
    )


def _age(age_s: float, limits_s: tuple[float, ...]) -> float:
    """Ages over the last limit are one. Ages under it are kept as they are: time goes on in equal steps."""
    return min(round(age_s, 3), limits_s[-1])
