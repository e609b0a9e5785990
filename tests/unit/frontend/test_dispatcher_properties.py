"""Engines that come, go, drain and talk late, in any order: no token is lost, doubled or out of place."""

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from roundhouse.frontend.live_requests import WaitLimits
from roundhouse.frontend.loss import LossCause
from roundhouse.frontend.membership import Member
from roundhouse.protocol.errors import NoEngine
from roundhouse.protocol.messages import AbortRequests, EngineCoreOutput, EngineCoreRequest
from roundhouse.protocol.sampling import FinishReason
from tests.support.mesh import request
from tests.support.mesh_dispatch import DispatchedMesh

IDENTITIES = ("a", "b", "c")
LIMITS = WaitLimits(wait_s=5.0, resume_s=20.0, max_waiting=3)


@dataclass
class Running:
    """What an engine has of one request: it makes token i the number i."""

    attempt: int
    num_tokens: int
    max_tokens: int


@dataclass
class PlayedEngine:
    """running: as the engine knows it. said: outputs that may come again, at the wrong time."""

    member: Member
    running: dict[str, Running] = field(default_factory=dict)
    said: list[EngineCoreOutput] = field(default_factory=list)

    def receive(self, message: EngineCoreRequest | AbortRequests) -> None:
        if isinstance(message, AbortRequests):
            for request_id in message.request_ids:
                self.running.pop(request_id, None)
            return
        params = message.sampling_params
        assert params is not None
        assert params.max_tokens is not None
        assert message.output_token_ids == list(range(len(message.output_token_ids)))
        assert message.request_id not in self.running
        num_tokens = len(message.output_token_ids)
        self.running[message.request_id] = Running(message.attempt, num_tokens, params.max_tokens)

    def step(self, request_id: str, num_tokens: int, *, leaves: bool = False) -> EngineCoreOutput:
        run = self.running[request_id]
        first, run.num_tokens = run.num_tokens, min(run.num_tokens + num_tokens, run.max_tokens)
        reason = FinishReason.LENGTH if run.num_tokens == run.max_tokens else None
        if leaves and reason is None:
            reason = FinishReason.ABORT
        if reason is not None:
            del self.running[request_id]
        output = EngineCoreOutput(request_id, run.attempt, first, list(range(first, run.num_tokens)), reason)
        self.said.append(output)
        return output


class Failover(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.mesh = DispatchedMesh(LIMITS)
        self.engines: dict[str, PlayedEngine] = {}
        self.departed: list[PlayedEngine] = []
        self.accepted: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.tokens: defaultdict[str, list[int]] = defaultdict(list)
        self.ends: defaultdict[str, list[FinishReason]] = defaultdict(list)
        self.resume_keys: defaultdict[str, set[str | None]] = defaultdict(set)
        self.num_given_up = 0
        self.num_requests = 0

    # What the mesh sent reaches the engines, what it passed on or gave up reaches the client.

    def settle(self) -> None:
        for identity, message in self.mesh.take_sent():
            assert isinstance(message, EngineCoreRequest | AbortRequests)
            self.engines[identity].receive(message)
        for output in self.mesh.given_up[self.num_given_up :]:
            self.forward(output)
        self.num_given_up = len(self.mesh.given_up)

    def forward(self, output: EngineCoreOutput, resume_key: str | None = None) -> None:
        assert output.request_id not in self.ends
        assert output.request_id not in self.aborted
        assert output.first_token_index == len(self.tokens[output.request_id])
        self.tokens[output.request_id] += output.new_token_ids
        if output.new_token_ids:
            self.resume_keys[output.request_id].add(resume_key)
        if output.finish_reason is not None:
            self.ends[output.request_id].append(output.finish_reason)

    def say(self, engine: PlayedEngine, *outputs: EngineCoreOutput) -> None:
        accepted = self.mesh.output(engine.member, *outputs)
        for output in accepted.outputs.outputs:
            self.forward(output, engine.member.hello.resume_key)
        assert len(accepted.outputs.outputs) + accepted.num_late <= len(outputs)
        self.settle()

    def speaking(self) -> list[PlayedEngine]:
        return [engine for _, engine in sorted(self.engines.items())]

    # Engines.

    @rule(identity=st.sampled_from(IDENTITIES), resume_key=st.sampled_from("kkx"))
    def join(self, identity: str, resume_key: str) -> None:
        for member in self.mesh.engines.members():
            if member.hello.identity == identity:
                self.lose(member, LossCause.REPLACED)
        self.mesh.gone.discard(identity)
        # The engine is there before the mesh sends it what waits.
        member = self.mesh.join(identity, resume_key=resume_key)
        self.engines[identity] = PlayedEngine(member)
        self.settle()

    @precondition(lambda self: self.engines)
    @rule(data=st.data(), cause=st.sampled_from(LossCause))
    def end_session(self, data: st.DataObject, cause: LossCause) -> None:
        self.lose(data.draw(st.sampled_from(self.speaking())).member, cause)

    def lose(self, member: Member, cause: LossCause) -> None:
        self.departed.append(self.engines.pop(member.hello.identity))
        self.mesh.lose(member, cause)
        self.settle()

    @precondition(lambda self: self.engines)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        self.mesh.drain(data.draw(st.sampled_from(self.speaking())).member)
        self.settle()

    @precondition(lambda self: self.engines)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        """Nothing can be sent to it; it is lost later, or says something before."""
        self.mesh.gone.add(data.draw(st.sampled_from(self.speaking())).member.hello.identity)

    @precondition(lambda self: any(engine.running for engine in self.engines.values()))
    @rule(data=st.data(), num_tokens=st.integers(0, 3), leaves=st.booleans())
    def step(self, data: st.DataObject, num_tokens: int, leaves: bool) -> None:
        engine = data.draw(st.sampled_from([engine for engine in self.speaking() if engine.running]))
        request_id = data.draw(st.sampled_from(sorted(engine.running)))
        self.say(engine, engine.step(request_id, num_tokens, leaves=leaves and not engine.member.is_taker))

    @precondition(lambda self: any(engine.said for engine in [*self.engines.values(), *self.departed]))
    @rule(data=st.data())
    def say_again(self, data: st.DataObject) -> None:
        """A late or doubled output with tokens or an end. One that says nothing may pass any number of times."""
        engine = data.draw(st.sampled_from([e for e in [*self.speaking(), *self.departed] if e.said]))
        again = data.draw(st.sampled_from(engine.said))
        if again.new_token_ids or again.finish_reason is not None:
            assert self.mesh.output(engine.member, again).num_late == 1

    # Clients.

    @rule(max_tokens=st.integers(1, 20), rank=st.none() | st.integers(0, 2))
    def add(self, max_tokens: int, rank: int | None) -> None:
        request_id = f"r{self.num_requests}"
        self.num_requests += 1
        try:
            self.mesh.dispatcher.add(request(request_id, max_tokens=max_tokens, data_parallel_rank=rank))
        except NoEngine:
            assert request_id not in self.mesh.live
        else:
            self.accepted[request_id] = max_tokens
        self.settle()

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.accepted)))
        if request_id in self.mesh.live:
            self.aborted.add(request_id)
        self.mesh.dispatcher.abort([request_id])
        self.settle()

    @rule(seconds=st.sampled_from([0.5, 3.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.mesh.now += seconds
        self.mesh.dispatcher.on_tick()
        self.settle()

    # What holds at all times.

    @invariant()
    def tokens_are_whole(self) -> None:
        for request_id, tokens in self.tokens.items():
            assert tokens == list(range(len(tokens)))
            if FinishReason.LENGTH in self.ends.get(request_id, []):
                assert len(tokens) == self.accepted[request_id]

    @invariant()
    def tokens_of_a_request_come_from_engines_with_one_resume_key(self) -> None:
        assert all(len(keys) == 1 for keys in self.resume_keys.values())

    @invariant()
    def each_request_is_live_ended_or_aborted(self) -> None:
        for request_id in self.accepted:
            is_over = (request_id in self.ends) + (request_id in self.aborted)
            assert is_over + (request_id in self.mesh.live) == 1
            assert len(self.ends.get(request_id, [])) <= 1

    @invariant()
    def members_count_what_they_have(self) -> None:
        live = self.mesh.live
        members = self.mesh.engines.members()
        placed = [each.request_id for member in members for each in live.placed_with(member)]
        assert len(placed) == len(set(placed)) == len(live) - live.num_waiting
        for member in members:
            assert member.num_inflight == len(live.placed_with(member))
        assert all(engine.member.num_inflight == 0 for engine in self.departed)

    @invariant()
    def a_live_request_runs_in_one_engine_that_can_be_sent_to(self) -> None:
        for engine in self.engines.values():
            held = {each.request_id: each.attempt for each in self.mesh.live.placed_with(engine.member)}
            running = {request_id: run.attempt for request_id, run in engine.running.items()}
            assert held.items() <= running.items()
            if not engine.member.is_unreachable:
                assert held == running

    def teardown(self) -> None:
        """With an engine left that takes everything, or with time, all ends."""
        for engine in self.speaking():
            self.lose(engine.member, LossCause.DRAINED)
        self.wait(1000.0)
        assert set(self.accepted) == set(self.ends) | self.aborted
        assert len(self.mesh.live) == self.mesh.live.num_waiting == 0


TestFailover = Failover.TestCase
TestFailover.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
