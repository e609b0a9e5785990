"""`Dispatcher`: puts requests on engines, and on other engines when those are lost or leave.

The order of things decides what a client may see. A request is live before it is sent, so no output comes too early. It
is taken back before it is sent elsewhere, so that nothing of the old attempt counts any more. Nothing here waits: what
cannot be placed now is placed when an engine comes, or is given up in time. Requests of which one may be what killed
their engines go on one to an engine, until a token clears each: the next loss then is the right one's end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from roundhouse.clock import Clock
from roundhouse.frontend.balancer import EngineLoad, choose
from roundhouse.frontend.engine_set import EngineSet
from roundhouse.frontend.live_request import LiveRequest, Resumed
from roundhouse.frontend.live_requests import Accepted, LiveRequests, choices_for
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import Member, MembershipState
from roundhouse.frontend.prefix_index import PrefixIndex, PromptHashes
from roundhouse.protocol.block_hash import BlockHash
from roundhouse.protocol.errors import DuplicateRequestId, MessageTooLarge, NoEngine
from roundhouse.protocol.frames import FrontendMessage
from roundhouse.protocol.identity import SessionId
from roundhouse.protocol.messages import AbortRequests, EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from roundhouse.protocol.sampling import FinishReason

COMPLETE = frozenset({FinishReason.STOP, FinishReason.LENGTH, FinishReason.REPETITION})
"""Ends after which the engine's cache has the whole request, for the next turn of its conversation."""


class Dispatcher:
    """send: False when nothing can be sent to that member any more, which is then no taker; raises `MessageTooLarge`,
    and nothing was sent. It may not call back.

    give_up: takes the ends of requests that nobody will serve. on_resumed: what each resumption cost.
    """

    def __init__(
        self,
        engines: EngineSet,
        live: LiveRequests,
        clock: Clock,
        *,
        send: Callable[[Member, FrontendMessage], bool],
        give_up: Callable[[list[EngineCoreOutput]], None],
        on_resumed: Callable[[Resumed], None],
    ) -> None:
        self._engines = engines
        self._live = live
        self._clock = clock
        self._send = send
        self._give_up = give_up
        self._on_resumed = on_resumed
        self._prefixes = PrefixIndex()
        self._turn = 0

    def add(self, request: EngineCoreRequest) -> None:
        """Raises `DuplicateRequestId`, `NoEngine` when none takes it and it may not wait, or `MessageTooLarge`; then
        nothing is left of it.
        """
        if request.request_id in self._live:
            raise DuplicateRequestId(f"request {request.request_id} is live")
        live = self._live.add(request, self._clock())
        try:
            if self._place(live):
                return
            if request.data_parallel_rank is not None:
                raise NoEngine(f"no engine with index {request.data_parallel_rank} takes requests now")
            if not self._live.may_wait(live):
                raise NoEngine("no engine takes requests now")
        except BaseException:
            self._live.remove([request.request_id])
            raise

    def abort(self, request_ids: Sequence[str]) -> None:
        for member, held in self._live.remove(request_ids):
            self._send_abort(member, held)

    def on_outputs(self, member: Member, outputs: EngineCoreOutputs) -> Accepted:
        """The caller passes the outputs on, and then calls `place_waiting` if some requests were returned: what ends
        there ends behind its last tokens.
        """
        ending: list[LiveRequest | None] = []
        if self._has_a_choice():
            ending = [self._live.get(out.request_id) for out in outputs.outputs if out.finish_reason in COMPLETE]
        accepted = self._live.accept(member, outputs, self._clock())
        for resumed in accepted.resumed:
            self._on_resumed(resumed)
        for live in ending:
            if live is not None and live.request_id not in self._live:
                hashes = live.hashes.with_outputs(member.hello.block_size, live.output_token_ids)
                self._prefixes.record(member.session_id, hashes)
        if accepted.resumed and not accepted.returned and self._live.has_waiting_suspect():
            # A token cleared a suspect: another one may have its place.
            self.place_waiting()
        return accepted

    def on_lost(self, member: Member, verdict: Verdict) -> None:
        self._prefixes.forget(member.session_id)
        self._finish(self._live.lose(member, verdict, self._clock()))
        self.place_waiting()

    def on_admitted(self, member: Member) -> None:
        """Before `on_taker`: what its coming tells of the engines that were lost."""
        self._live.on_seen(member.hello)

    def on_draining(self, member: Member) -> None:
        """Moves what others can go on with. What is nearly done, or fits nowhere else, ends where it is."""
        takers = self._engines.takers()
        moving = [
            live
            for live in self._live.placed_with(member)
            if not live.is_nearly_done and choices_for(live, takers, but=member)
        ]
        if not moving:
            return
        now = self._clock()
        self._send_abort(member, [live.request_id for live in moving])
        for live in moving:
            self._live.take_back(live, LossCause.DRAINED, now)
        self._place_all(moving)

    def on_taker(self) -> None:
        """An engine takes requests that did not before."""
        self.place_waiting()
        for member in self._engines.members():
            if member.state is MembershipState.DRAINING:
                self.on_draining(member)

    def on_tick(self) -> None:
        """To be called now and then: what an ended suspect kept out is placed, and what waited too long is given up."""
        self.place_waiting()
        self._finish(self._live.expire(self._clock()))

    def place_waiting(self) -> None:
        self._place_all(self._live.waiting())

    def _place_all(self, waiting: Sequence[LiveRequest]) -> None:
        takers = self._engines.takers()
        if not waiting or not takers:
            return
        given_up: list[EngineCoreOutput] = []
        keys = {member.hello.resume_key for member in takers}
        with_suspects = self._live.sessions_with_suspects()
        for live in waiting:
            if live.has_started and live.resume_key not in keys:
                continue
            try:
                self._place(live, but=with_suspects if live.suspicion.is_suspect else ())
            except MessageTooLarge as error:
                given_up.append(self._live.give_up(live, error))
                continue
            if not live.suspicion.is_suspect:
                continue
            if live.member is not None:
                with_suspects.add(live.member.session_id)
            elif choices_for(live, takers):
                # Another suspect keeps it out and no want of an engine: this is no wait that ends.
                live.waits_since = self._clock()
        self._finish(given_up)

    def _place(self, live: LiveRequest, *, but: Collection[SessionId] = ()) -> bool:
        """False when no engine can get it now; it waits. Raises `MessageTooLarge`; it waits then too."""
        while (member := self._choose(live, but)) is not None:
            request = self._live.place(live, member)
            try:
                is_sent = self._send(member, request)
            except MessageTooLarge:
                self._live.take_back(live, None, self._clock())
                raise
            if is_sent:
                if self._has_a_choice():
                    self._prefixes.record(member.session_id, live.hashes.of(member.hello.block_size))
                return True
            self._live.take_back(live, None, self._clock())
        return False

    def _send_abort(self, member: Member, request_ids: list[str]) -> None:
        """In as many messages as it takes; each id alone is shorter than the request that it stood in."""
        try:
            self._send(member, AbortRequests(request_ids))
        except MessageTooLarge:
            half = len(request_ids) // 2
            if not half:
                raise
            self._send_abort(member, request_ids[:half])
            self._send_abort(member, request_ids[half:])

    def _choose(self, live: LiveRequest, but: Collection[SessionId]) -> Member | None:
        """A rank that was asked for holds until the request was lost once: to go on elsewhere is better than to end."""
        takers = [member for member in self._engines.takers() if member.session_id not in but]
        choices = choices_for(live, takers)
        if len(choices) == 1 and live.request.data_parallel_rank is None:
            return choices[0]
        self._turn += 1
        loads, anchor = survey(choices, self._prefixes, live.hashes)
        session_id = choose(
            loads,
            num_prompt_tokens=len(live.request.prompt_token_ids),
            anchor=anchor,
            data_parallel_rank=None if live.attempt >= live.request.attempt else live.request.data_parallel_rank,
            turn=self._turn,
        )
        return None if session_id is None else self._engines.get(session_id)

    def _has_a_choice(self) -> bool:
        """Whether it matters what is cached where: with one engine nothing is hashed and nothing kept."""
        return self._engines.num_members > 1

    def _finish(self, given_up: list[EngineCoreOutput]) -> None:
        if given_up:
            self._give_up(given_up)


def survey(
    members: Sequence[Member], prefixes: PrefixIndex, hashes: PromptHashes
) -> tuple[list[EngineLoad], BlockHash | None]:
    """What `choose` is to know: the loads, those of equal block size together, and the anchor in the smallest one."""
    loads: list[EngineLoad] = []
    anchor = None
    for block_size in sorted({member.hello.block_size for member in members}, reverse=True):
        alike = [member for member in members if member.hello.block_size == block_size]
        num_cached, anchor = prefixes.find(hashes.of(block_size), [member.session_id for member in alike])
        loads += [_load_of(member, count * block_size) for member, count in zip(alike, num_cached, strict=True)]
    return loads, anchor


def _load_of(member: Member, num_cached_tokens: int) -> EngineLoad:
    load = member.load
    return EngineLoad(
        member.session_id,
        member.engine_index,
        member.hello.identity,
        load.num_waiting_reqs + load.num_running_reqs,
        load.num_waiting_reqs,
        member.num_sent_since_load,
        member.num_inflight,
        load.kv_cache_usage,
        member.hello.max_num_seqs,
        num_cached_tokens,
    )
