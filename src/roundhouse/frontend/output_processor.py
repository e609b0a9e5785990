"""`OutputProcessor`: engine outputs → the right request's collector. All that is known about live requests is here.

Every accepted request ends exactly once, with a finish reason or with an error in its collector, and is then gone from
the maps. Nothing here waits or reads a clock: between two calls the maps agree.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from roundhouse.frontend.collector import RequestOutputCollector
from roundhouse.frontend.faults import is_fault
from roundhouse.frontend.input_processor import ParsedRequest
from roundhouse.frontend.logprobs import LogprobsProcessor
from roundhouse.frontend.outputs import CompletionOutput, RequestOutput, RequestOutputKind
from roundhouse.frontend.parent_request import ParentRequest
from roundhouse.frontend.request_state import RequestState
from roundhouse.frontend.stats import IterationStats
from roundhouse.model_store.tokenizer import Tokenizer
from roundhouse.protocol.errors import DuplicateRequestId, EngineGenerateError, RoundhouseError, error_from_code
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from roundhouse.protocol.sampling import FinishReason

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reservation:
    """An id that is taken by a request whose prompt is still worked on."""

    collector: RequestOutputCollector
    kind: RequestOutputKind
    num_choices: int


class OutputProcessor:
    """`request_states` by the ids that engines know, `parents` and `reservations` by the ids that callers know."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.request_states: dict[str, RequestState] = {}
        self.parents: dict[str, ParentRequest] = {}
        self.reservations: dict[str, Reservation] = {}
        self._tokenizer = tokenizer
        self._prompt_logprobs = LogprobsProcessor(tokenizer)

    def reserve(self, external_id: str, kind: RequestOutputKind, num_choices: int) -> Reservation:
        """Takes the id. Raises `DuplicateRequestId` while another request has it, which goes on undisturbed."""
        if external_id in self.reservations or external_id in self.parents:
            raise DuplicateRequestId(f"a request with the id {external_id!r} is running", param="request_id")
        reservation = Reservation(RequestOutputCollector(kind), kind, num_choices)
        self.reservations[external_id] = reservation
        return reservation

    def is_reserved(self, external_id: str, reservation: Reservation) -> bool:
        """False once the request was aborted, even when another one has taken the id."""
        return self.reservations.get(external_id) is reservation

    def release(self, external_id: str, reservation: Reservation) -> None:
        """Gives the id of a refused request back."""
        if self.is_reserved(external_id, reservation):
            del self.reservations[external_id]

    def is_collected_by(self, external_id: str, collector: RequestOutputCollector) -> bool:
        """Whether the live request with this id is the one that `collector` belongs to."""
        parent = self.parents.get(external_id)
        return parent is not None and parent.collector is collector

    def add_request(
        self, external_id: str, parsed: ParsedRequest, children: Sequence[EngineCoreRequest], *, arrival_s: float
    ) -> None:
        """Turns a reservation into live choices; from here on their outputs find them.

        Raises `EngineGenerateError` when the prompt cannot be taken in; then nothing of the request is left.
        """
        reservation = self.reservations.pop(external_id)
        prompt_token_ids = children[0].prompt_token_ids
        parent = ParentRequest(
            external_id, parsed.text, prompt_token_ids, reservation.kind, reservation.collector, len(children)
        )
        try:
            states = [
                RequestState(child, parsed.params, parent, self._tokenizer, arrival_s=arrival_s) for child in children
            ]
        except BaseException as error:
            if not is_fault(error):
                raise
            raise _unexpected(error, external_id, "the prompt of the request could not be processed") from error
        self.parents[external_id] = parent
        for state in states:
            parent.children[state.request_id] = self.request_states[state.request_id] = state

    def process_outputs(
        self, batch: EngineCoreOutputs, outputs: Iterable[EngineCoreOutput], now: float, iteration: IterationStats
    ) -> list[str]:
        """Handles `outputs`, a slice of the batch's. Returns the ids to abort in the engines: those that ended here."""
        to_abort: list[str] = []
        engine = (batch.engine_index, batch.epoch)
        for output in outputs:
            state = self.request_states.get(output.request_id)
            if state is not None:
                state.attempt = max(state.attempt, output.attempt)  # a later one is the next engine's
            if state is None or _is_late(state, output):
                iteration.num_late_outputs += 1
                continue
            state.stats.on_output(output, engine, batch.timestamp, now, iteration)
            try:
                self._process(state, output)
            except BaseException as error:
                if not is_fault(error):
                    raise
                ended = self._fail(state.parent, _failure_of(error, state.parent), now, iteration)
            else:
                if state.finish_reason is None:
                    continue
                self._finish(state, now, iteration)
                ended = [state.request_id]
            # The engine itself ended what it sent a finish reason for.
            to_abort += [ended_id for ended_id in ended if ended_id != output.request_id or not output.finished]
        return to_abort

    def abort_requests(self, external_ids: Iterable[str], now: float, iteration: IterationStats) -> list[str]:
        """Ends requests with ABORT and what they have so far. Returns the ids to abort in the engines.

        Ids that are not live are ignored.
        """
        to_abort: list[str] = []
        for external_id in external_ids:
            if (reservation := self.reservations.pop(external_id, None)) is not None:
                reservation.collector.put(_aborted_before_start(external_id, reservation))
            if (parent := self.parents.get(external_id)) is not None:
                to_abort += self._abort(parent, now, iteration)
        return to_abort

    def fail_request(
        self, external_id: str, error: RoundhouseError, now: float, iteration: IterationStats
    ) -> list[str]:
        """The caller of a live request gets `error`. Returns the ids to abort in the engines."""
        return self._fail(self.parents[external_id], error, now, iteration)

    def fail_all(self, error: RoundhouseError, now: float, iteration: IterationStats) -> list[str]:
        """Every caller gets `error`. Returns the ids to abort in the engines."""
        for reservation in self.reservations.values():
            reservation.collector.fail(error)
        self.reservations.clear()
        return [
            ended_id for parent in list(self.parents.values()) for ended_id in self._fail(parent, error, now, iteration)
        ]

    def _process(self, state: RequestState, output: EngineCoreOutput) -> None:
        """Raises what the whole request fails with."""
        if output.finish_reason is FinishReason.ERROR:
            raise _error_of(output)
        if output.new_token_ids and output.first_token_index != len(state.token_ids):
            raise EngineGenerateError("a part of the answer was lost on its way from the engine")
        parent = state.parent
        if output.prompt_logprobs is not None:
            first = parent.prompt_token_ids[0]
            parent.prompt_logprobs = self._prompt_logprobs.prompt_positions(output.prompt_logprobs, first)
        if output.num_cached_tokens and not state.token_ids:
            parent.num_cached_tokens = output.num_cached_tokens
        state.append(output)
        parent.emit(state, output)

    def _abort(self, parent: ParentRequest, now: float, iteration: IterationStats) -> list[str]:
        """Ends all choices with what they have so far. Returns their ids."""
        ended: list[str] = []
        for state in list(parent.children.values()):
            try:
                state.finish(FinishReason.ABORT)
                parent.emit(state)
            except BaseException as error:
                if not is_fault(error):
                    raise
                return ended + self._fail(parent, _failure_of(error, parent), now, iteration)
            self._finish(state, now, iteration)
            ended.append(state.request_id)
        return ended

    def _finish(self, state: RequestState, now: float, iteration: IterationStats) -> None:
        assert state.finish_reason is not None
        del self.request_states[state.request_id]
        iteration.finished.append(state.stats.finish(state.finish_reason, now))
        if not state.parent.children:
            del self.parents[state.parent.external_id]

    def _fail(self, parent: ParentRequest, error: RoundhouseError, now: float, iteration: IterationStats) -> list[str]:
        """Ends all choices, since an error cannot say which one it is about. Returns their ids."""
        parent.collector.fail(error)
        ended = list(parent.children)
        for request_id in ended:
            state = parent.children.pop(request_id)
            state.finish_reason = FinishReason.ERROR
            self._finish(state, now, iteration)
        return ended


def _is_late(state: RequestState, output: EngineCoreOutput) -> bool:
    """From an engine that no longer has the request, or sent twice."""
    if output.attempt != state.attempt:
        return True
    return bool(output.new_token_ids) and output.first_token_index < len(state.token_ids)


def _error_of(output: EngineCoreOutput) -> RoundhouseError:
    if output.error is None:
        return EngineGenerateError("the engine failed on this request and gave no reason")
    return error_from_code(output.error.code, output.error.message, param=output.error.param)


def _failure_of(error: BaseException, parent: ParentRequest) -> RoundhouseError:
    """What a request ends with that met `error` on its way out."""
    if isinstance(error, RoundhouseError):
        return error
    return _unexpected(error, parent.external_id, "an output of the request could not be processed")


def _unexpected(error: BaseException, external_id: str, message: str) -> RoundhouseError:
    """A fault of ours that one request's tokens led to; it may not end the others."""
    logger.error(message, exc_info=error, extra={"request_id": external_id})
    return EngineGenerateError(message)


def _aborted_before_start(external_id: str, reservation: Reservation) -> RequestOutput:
    reason = str(FinishReason.ABORT)
    choices = [CompletionOutput(i, "", [], finish_reason=reason) for i in range(reservation.num_choices)]
    return RequestOutput(external_id, None, [], choices, finished=True)
