"""The real dispatcher, engine set and table of live requests over engines that are played, at a time that is set."""

from __future__ import annotations

from itertools import count
from typing import Any

from roundhouse.frontend.dispatcher import Dispatcher
from roundhouse.frontend.engine_set import EngineSet, Lost
from roundhouse.frontend.live_request import Resumed
from roundhouse.frontend.live_requests import Accepted, LiveRequests, WaitLimits
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import Member
from roundhouse.protocol.errors import MessageTooLarge
from roundhouse.protocol.frames import FrontendMessage
from roundhouse.protocol.messages import (
    AbortRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
)
from tests.support.mesh import admit, hello


class DispatchedMesh:
    """sent: what went out, with the identity of the engine. gone: identities that nothing can be sent to.

    max_tokens_sent: prompt and outputs of a request that the engine with this identity takes in one message.
    max_ids_sent: ids in one ABORT.
    """

    def __init__(self, limits: WaitLimits | None = None) -> None:
        self.now = 100.0
        self.engines = EngineSet("frontend-1", count(1))
        self.live = LiveRequests(limits)
        self.sent: list[tuple[str, FrontendMessage]] = []
        self.gone: set[str] = set()
        self.max_tokens_sent: dict[str, int] = {}
        self.max_ids_sent = 1000
        self.given_up: list[EngineCoreOutput] = []
        self.resumed: list[Resumed] = []
        self.dispatcher = Dispatcher(
            self.engines,
            self.live,
            lambda: self.now,
            send=self._send,
            give_up=self.given_up.extend,
            on_resumed=self.resumed.append,
        )
        self._nonces = count()

    def join(self, identity: str, **changes: Any) -> Member:
        """A new session; one that this identity has already is over."""
        held = [member for member in self.engines.members() if member.hello.identity == identity]
        for member in held:
            self.lose(member, LossCause.REPLACED)
        self.gone.discard(identity)
        nonce = next(self._nonces) % 256
        member = admit(self.engines, hello(identity, nonce=nonce, **changes), self.now)
        self.dispatcher.on_admitted(member)
        self.dispatcher.on_taker()
        return member

    def lose(self, member: Member, cause: LossCause = LossCause.UNREACHABLE) -> None:
        for effect in self.engines.lose(member, Verdict(cause, "gone")):
            if isinstance(effect, Lost):
                self.dispatcher.on_lost(effect.member, effect.verdict)

    def drain(self, member: Member) -> None:
        self.engines.drain(member)
        self.dispatcher.on_draining(member)

    def output(self, member: Member, *outputs: EngineCoreOutput) -> Accepted:
        accepted = self.dispatcher.on_outputs(member, EngineCoreOutputs(outputs=list(outputs)))
        if accepted.returned:
            self.dispatcher.place_waiting()
        return accepted

    def take_sent(self) -> list[tuple[str, FrontendMessage]]:
        """What went out since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def inflight(self) -> dict[str, int]:
        return {member.hello.identity: member.num_inflight for member in self.engines.members()}

    def _send(self, member: Member, message: FrontendMessage) -> bool:
        assert member.is_alive
        identity = member.hello.identity
        match message:
            case EngineCoreRequest():
                num_tokens = len(message.prompt_token_ids) + len(message.output_token_ids)
                if num_tokens > self.max_tokens_sent.get(identity, num_tokens):
                    raise MessageTooLarge(f"{num_tokens} tokens")
            case AbortRequests(request_ids):
                if len(request_ids) > self.max_ids_sent:
                    raise MessageTooLarge(f"{len(request_ids)} ids")
            case _:
                raise AssertionError(f"a dispatcher does not send {message}")
        if identity in self.gone or member.is_unreachable:
            member.is_unreachable = True
            return False
        self.sent.append((identity, message))
        return True
