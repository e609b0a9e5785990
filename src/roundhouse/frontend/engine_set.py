"""`EngineSet`: the engines of one frontend. Who is admitted, who is refused, who is gone.

The table is identity → member. Rules: an engine is admitted when both halves of its Hello came, a protocol version is
in common, the model is the frontend's and nobody alive holds its identity with a higher epoch. Admitting a member ends
the one that held the identity before; but when that one is of the same process, by another key, it is superseded: it
gets nothing new and ends when it has nothing left. An epoch is stale only while the holder of a higher one is alive:
when that one is lost, the lower one may come back. An engine index is dense; an identity that returns gets its old one
if it is free.

Pure: messages and `now` in, effects out. `mp_client` obeys them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from roundhouse.frontend.hello_halves import Greeting, HelloHalves, Mismatch
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import Member, MembershipState
from roundhouse.protocol.identity import WITHOUT_KEYS, EngineIndex, Peer, SessionId
from roundhouse.protocol.limits import MAX_ENGINES, MAX_MESSAGE_BYTES
from roundhouse.protocol.messages import (
    PROTOCOL_VERSIONS,
    Admitted,
    Died,
    EngineCoreOutputs,
    Hello,
    Pong,
    Refused,
)

SMALLEST_MESSAGE_BYTES = 1024

SESSION_OVER = "session_over"
"""The reason of a REFUSED that ends a session that was admitted once; all others answer a Hello."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Send `admitted` to `member`, which may get requests from here on."""

    member: Member
    admitted: Admitted


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send `refused` to `routing_id`; nothing is to be done when that peer is gone."""

    routing_id: bytes
    refused: Refused
    peer: Peer = WITHOUT_KEYS


@dataclass(frozen=True, slots=True)
class Lost:
    """`member` is over: its requests go elsewhere."""

    member: Member
    verdict: Verdict


Effect = Welcome | Refuse | Lost


class EngineSet:
    """session_ids: positive numbers, none of them twice. Who knows one can speak for that session.

    model: the name that engines must serve; None takes that of the first engine.
    frontends: addresses that every admitted engine is told.
    """

    def __init__(
        self,
        frontend_instance: str,
        session_ids: Iterator[int],
        *,
        model: str | None = None,
        frontends: Iterable[str] = (),
    ) -> None:
        self.frontend_instance = frontend_instance
        self.model = model
        self._frontends = list(frontends)
        self._halves = HelloHalves()
        self._session_ids = session_ids
        self._members: dict[SessionId, Member] = {}
        self._holders: dict[str, Member] = {}
        self._last_index: dict[str, EngineIndex] = {}

    def members(self) -> list[Member]:
        """All that are alive, in the order of their engine indexes."""
        return sorted(self._members.values(), key=lambda member: member.engine_index)

    @property
    def num_members(self) -> int:
        return len(self._members)

    @property
    def num_halves_over(self) -> int:
        """Hellos that were not taken since too many of their engine waited for their other half."""
        return self._halves.num_over

    def get(self, session_id: int) -> Member | None:
        """None for a session that is over or never was."""
        return self._members.get(SessionId(session_id))

    def takers(self) -> list[Member]:
        """Those that get new requests, in the order of their engine indexes."""
        return [member for member in self.members() if member.is_taker]

    def on_router_hello(self, routing_id: bytes, hello: Hello, now: float, peer: Peer = WITHOUT_KEYS) -> list[Effect]:
        """`peer` may be who `hello` says. Raises `MalformedFrame`; then nothing is admitted."""
        return self._on_greeting(self._halves.on_router(routing_id, hello, now, peer), now)

    def on_pull_hello(self, hello: Hello, now: float, peer: Peer = WITHOUT_KEYS) -> list[Effect]:
        """As `on_router_hello`."""
        return self._on_greeting(self._halves.on_pull(hello, now, peer), now)

    def on_outputs(self, member: Member, outputs: EngineCoreOutputs) -> list[Effect]:
        if outputs.epoch != member.hello.epoch or outputs.engine_index != member.engine_index:
            return self.lose(member, Verdict(LossCause.GAP, "an output with another engine's index or epoch"))
        return self._act(member, member.on_outputs(outputs))

    def on_pong(self, member: Member, pong: Pong, now: float) -> list[Effect]:
        return self._act(member, member.on_pong(pong, now))

    def drain(self, member: Member) -> None:
        """It gets nothing new: it said that it leaves, or somebody else did."""
        member.on_draining()

    def on_died(self, member: Member, died: Died) -> list[Effect]:
        return self.lose(member, Verdict(LossCause.DIED, f"the engine died: {died.message}"), tell=False)

    def judge(self, now: float) -> list[Effect]:
        """To be called now and then, after everything that came was handed in."""
        return [effect for member in self.members() for effect in self._act(member, member.judge(now))]

    def dismiss_superseded(self) -> list[Effect]:
        """Ends the superseded sessions that have nothing left."""
        verdict = Verdict(LossCause.DRAINED, "the engine has a session by a newer key")
        idle = [member for member in self.members() if member.is_superseded and not member.num_inflight]
        for member in idle:
            member.on_draining()
        return [effect for member in idle for effect in self.lose(member, verdict)]

    def restart_deadlines(self, now: float) -> None:
        for member in self._members.values():
            member.restart_deadlines(now)

    def lose(self, member: Member, verdict: Verdict, *, tell: bool = True) -> list[Effect]:
        """Ends a session. `tell`: the engine may hear that it is over, and comes back with a new one."""
        if not member.is_alive:
            return []
        member.end()
        if member.state is MembershipState.LEFT:
            verdict = Verdict(LossCause.DRAINED, verdict.reason)
        del self._members[member.session_id]
        if self._holders.get(member.hello.identity) is member:
            self._pass_on(member.hello.identity)
        effects: list[Effect] = [Lost(member, verdict)]
        if tell:
            effects.append(Refuse(member.routing_id, Refused(SESSION_OVER, verdict.reason), member.peer))
        return effects

    def _act(self, member: Member, verdict: Verdict | None) -> list[Effect]:
        return [] if verdict is None else self.lose(member, verdict)

    def _on_greeting(self, greeting: Greeting | Mismatch | None, now: float) -> list[Effect]:
        if greeting is None:
            return []
        if isinstance(greeting, Mismatch):
            told = Refused("hello", "the Hellos by DEALER and by PUSH differ")
            return [Refuse(greeting.routing_id, told, greeting.peer)]
        refused = self._reason_to_refuse(greeting.hello)
        if refused is not None:
            return [Refuse(greeting.routing_id, refused, greeting.peer)]
        return [*self._make_way(greeting), self._admit(greeting, now)]

    def _make_way(self, greeting: Greeting) -> list[Effect]:
        """For the identity's next session. One that the same process has by another key stays until it is empty."""
        holder = self._holders.get(greeting.hello.identity)
        if holder is None:
            return []
        kept = holder if greeting.hello.epoch == holder.hello.epoch and greeting.peer != holder.peer else None
        higher = greeting.hello.epoch > holder.hello.epoch
        verdict = Verdict(LossCause.REPLACED, "fenced by a higher epoch" if higher else "replaced by a new session")
        effects: list[Effect] = []
        for member in self.members():
            if member.hello.identity == greeting.hello.identity and member is not kept:
                effects += self.lose(member, verdict)
        if kept is not None:
            kept.is_superseded = True
        return effects

    def _pass_on(self, identity: str) -> None:
        """Its holder is gone; a session that it had superseded is in charge again."""
        del self._holders[identity]
        for member in self._members.values():
            if member.hello.identity == identity:
                member.is_superseded = False
                self._holders[identity] = member

    def _reason_to_refuse(self, hello: Hello) -> Refused | None:
        if not set(hello.protocol_versions) & set(PROTOCOL_VERSIONS):
            return Refused("protocol_version", f"this frontend speaks {PROTOCOL_VERSIONS}")
        if min(hello.block_size, hello.num_blocks, hello.max_model_len, hello.max_num_seqs) < 1:
            return Refused("hello", "a size in the Hello is not positive")
        if hello.max_message_bytes < SMALLEST_MESSAGE_BYTES:
            return Refused("hello", f"max_message_bytes is under {SMALLEST_MESSAGE_BYTES}")
        if self.model is not None and hello.model != self.model:
            return Refused("model", f"this frontend serves {self.model!r}, not {hello.model!r}")
        holder = self._holders.get(hello.identity)
        if holder is not None and hello.epoch < holder.hello.epoch:
            return Refused("fenced", f"epoch {holder.hello.epoch} of {hello.identity} is alive")
        if holder is None and len(self._members) >= MAX_ENGINES:
            return Refused("full", f"this frontend has {MAX_ENGINES} engines")
        return None

    def _admit(self, greeting: Greeting, now: float) -> Welcome:
        hello = greeting.hello
        self.model = hello.model
        member = Member(
            SessionId(next(self._session_ids)),
            self._free_index(hello.identity),
            greeting.routing_id,
            hello,
            min(hello.max_message_bytes, MAX_MESSAGE_BYTES),
            heard_at=now,
            peer=greeting.peer,
        )
        self._members[member.session_id] = member
        self._holders[hello.identity] = member
        self._remember_index(hello.identity, member.engine_index)
        version = max(set(hello.protocol_versions) & set(PROTOCOL_VERSIONS))
        admitted = Admitted(
            self.frontend_instance,
            member.session_id,
            member.engine_index,
            version,
            member.max_message_bytes,
            self._frontends,
        )
        return Welcome(member, admitted)

    def _remember_index(self, identity: str, index: EngineIndex) -> None:
        self._last_index.pop(identity, None)
        self._last_index[identity] = index
        if len(self._last_index) > MAX_ENGINES:
            del self._last_index[next(iter(self._last_index))]

    def _free_index(self, identity: str) -> EngineIndex:
        """The index of a session that it supersedes is its own too: one engine, one index."""
        taken = {member.engine_index for member in self._members.values() if member.hello.identity != identity}
        last = self._last_index.get(identity)
        if last is not None and last not in taken:
            return last
        return next(EngineIndex(index) for index in count() if index not in taken)
