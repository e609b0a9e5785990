"""The machine of one live request, from its acceptance to its last output: which engine has it, and what came of it.

    WAITING   no engine has it: none takes it now, or the one that had it is lost
    PLACED    one engine has it
    ENDED     its last output came, it was aborted, or it was given up

Rules: every placement is another attempt, and only outputs of the current one, from the engine that has it, count. What
came is kept, so that the next engine goes on behind it: as outputs, the way a preempted request comes back, so that
penalties, stop tokens, counters and grammar go on too. Tokens of two engines may follow each other only if these have
the same resume key. A request that keeps killing its engines is given up: `suspicion` says when. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from roundhouse.frontend.loss import LossCause
from roundhouse.frontend.membership import Member
from roundhouse.frontend.prefix_index import PromptHashes
from roundhouse.frontend.suspicion import Suspicion
from roundhouse.protocol.machine import Machine
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreRequest, Hello

NEARLY_DONE_TOKENS = 8
"""With this few tokens left a request ends sooner where it is than another engine could compute what came before."""


class PlacementState(Enum):
    WAITING = "waiting"
    PLACED = "placed"
    ENDED = "ended"


class Place:
    """It was sent to an engine."""


class Lose:
    """The engine that had it is lost, leaves, or never got it."""


class End:
    """Nothing more is to come of it."""


_S = PlacementState

TABLE: dict[tuple[PlacementState, type], PlacementState] = {
    (_S.WAITING, Place): _S.PLACED,
    (_S.WAITING, End): _S.ENDED,
    (_S.PLACED, Lose): _S.WAITING,
    (_S.PLACED, End): _S.ENDED,
}


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first token after a loss came.

    gap_s: since the last token before it, or since the loss if there was none. num_replayed_tokens: prompt and outputs
    that the next engine was given again.
    """

    cause: LossCause
    gap_s: float
    num_replayed_tokens: int


@dataclass(slots=True)
class LiveRequest:
    """accepted_at, waits_since, last_token_at: on the frontend's clock; waits_since counts while WAITING.

    output_token_ids: what came, of all attempts. attempt: of the current placement, or the last one.
    """

    request: EngineCoreRequest
    accepted_at: float
    machine: Machine[PlacementState] = field(init=False)
    hashes: PromptHashes = field(init=False)
    output_token_ids: list[int] = field(init=False)
    member: Member | None = None
    attempt: int = field(init=False)
    waits_since: float = field(init=False)
    resume_key: str | None = None
    suspicion: Suspicion = field(default_factory=Suspicion)
    _capacity: int = 0
    _last_token_at: float | None = None
    _loss: tuple[LossCause, float] | None = None

    def __post_init__(self) -> None:
        self.machine = Machine(self.request.request_id, TABLE, PlacementState.WAITING)
        self.hashes = PromptHashes(self.request)
        self.output_token_ids = list(self.request.output_token_ids)
        self.attempt = self.request.attempt - 1
        self.waits_since = self.accepted_at

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def is_waiting(self) -> bool:
        return self.machine.state is PlacementState.WAITING

    @property
    def was_placed(self) -> bool:
        """Whether an engine has it, or had it."""
        return self.attempt >= self.request.attempt

    @property
    def has_started(self) -> bool:
        """Whether an engine's tokens may have been shown: it then goes on with that resume key only."""
        return self.resume_key is not None

    @property
    def rank(self) -> tuple[bool, float, float]:
        """The order in which waiting requests are placed: started ones first, each by its original arrival."""
        return (not self.has_started, self.request.arrival_time, self.accepted_at)

    @property
    def is_nearly_done(self) -> bool:
        params = self.request.sampling_params
        if params is None or params.max_tokens is None or not self.has_started:
            return False
        return params.max_tokens - len(self.output_token_ids) <= NEARLY_DONE_TOKENS

    def fits(self, hello: Hello) -> bool:
        """Whether that engine can take it: room for all that was asked for; and once it has started the same resume
        key, and as much room as was promised."""
        if not self.has_started:
            return hello.max_model_len >= self._num_tokens_asked
        return hello.resume_key == self.resume_key and capacity_of(hello) >= min(self._capacity, self._num_tokens_due)

    def place(self, member: Member) -> EngineCoreRequest:
        """The message for `member`, which has the request from here on."""
        self.machine.move(Place)
        self.attempt += 1
        self.member = member
        member.count_request()
        if not self.has_started:
            self._capacity = capacity_of(member.hello)
        if self.attempt == self.request.attempt:
            return self.request
        return msgspec.structs.replace(
            self.request, attempt=self.attempt, output_token_ids=list(self.output_token_ids), data_parallel_rank=None
        )

    def accept(self, member: Member, output: EngineCoreOutput) -> bool:
        """Whether `output` is the next of the current attempt; False for one that is late, doubled or not ours."""
        if self.member is not member or output.attempt != self.attempt:
            return False
        return not output.new_token_ids or output.first_token_index >= len(self.output_token_ids)

    def take(self, output: EngineCoreOutput, now: float) -> Resumed | None:
        """Keeps the tokens of an accepted output. The first ones after a loss tell what that cost."""
        assert self.member is not None
        if not output.new_token_ids:
            return None
        resumed = self._resumed(now)
        self.output_token_ids += output.new_token_ids
        self.resume_key = self.member.hello.resume_key
        self.suspicion.on_token()
        self._last_token_at = now
        return resumed

    def lose(self, cause: LossCause | None, now: float) -> None:
        """Its engine has it no more; it waits for another. cause: None when nothing was sent, which was no attempt."""
        self.machine.move(Lose)
        assert self.member is not None
        engine = self.member.hello
        self._leave_member()
        self.waits_since = now
        if cause is None:
            self.attempt -= 1
            return
        self.suspicion.on_loss(engine, cause)
        if self._loss is None:
            self._loss = (cause, now)

    def end(self) -> None:
        self.machine.move(End)
        self._leave_member()

    @property
    def _num_tokens_asked(self) -> int:
        params = self.request.sampling_params
        wanted = 0 if params is None else params.max_tokens or 1
        return len(self.request.prompt_token_ids) + wanted

    @property
    def _num_tokens_due(self) -> int:
        params = self.request.sampling_params
        if params is None:
            return len(self.request.prompt_token_ids)
        if params.max_tokens is None:
            return self._capacity
        return len(self.request.prompt_token_ids) + params.max_tokens

    def _leave_member(self) -> None:
        if self.member is not None:
            self.member.count_end()
            self.member = None

    def _resumed(self, now: float) -> Resumed | None:
        if self._loss is None:
            return None
        cause, lost_at = self._loss
        self._loss = None
        since = lost_at if self._last_token_at is None else self._last_token_at
        return Resumed(cause, now - since, len(self.request.prompt_token_ids) + len(self.output_token_ids))


def capacity_of(hello: Hello) -> int:
    """Tokens that one request can have there: the context, or what the KV cache holds beside its null block."""
    return min(hello.max_model_len, (hello.num_blocks - 1) * hello.block_size)
