"""`EngineCore`: one step is schedule, execute, update. No sockets, no threads; offline and served requests share it.

Whatever one request causes ends that request alone, with an error output; what `step` raises is the engine's end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from roundhouse.clock import Clock, monotonic
from roundhouse.engine.executor import Executor
from roundhouse.protocol import limits
from roundhouse.protocol.errors import EngineGenerateError, InvalidRequest, RoundhouseError
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    OutputError,
    SchedulerStats,
)
from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.request import Request
from roundhouse.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)


def _nothing() -> None:
    pass


class EngineCore:
    """Requests in, outputs per client out."""

    def __init__(self, scheduler: Scheduler, executor: Executor, *, vocab_size: int, clock: Clock = monotonic) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.vocab_size = vocab_size
        self._clock = clock

    def add_request(self, message: EngineCoreRequest, client_index: ClientIndex) -> EngineCoreOutput | None:
        """Queues the request. Returns the error output that answers it when it cannot be built; then none is queued."""
        try:
            self.scheduler.add_request(self._checked(message, client_index), self._clock())
        except RoundhouseError as error:
            return error_output(message, error)
        return None

    def _checked(self, message: EngineCoreRequest, client_index: ClientIndex) -> Request:
        """The request, with everything checked again that a frontend should have checked. Raises `RequestError`, or
        `EngineGenerateError` for a fault of ours that the request led to.
        """
        try:
            return self._build(message, client_index)
        except RoundhouseError:
            raise
        except Exception as error:
            logger.exception("a request could not be taken in", extra={"request_id": message.request_id})
            raise EngineGenerateError("the engine could not take this request in") from error

    def _build(self, message: EngineCoreRequest, client_index: ClientIndex) -> Request:
        params = message.sampling_params
        if params is None or message.pooling_params is not None:
            raise InvalidRequest("this engine generates; it does not encode", param="pooling_params")
        if message.lora_name is not None:
            raise InvalidRequest("this engine has no adapters", param="lora_name")
        if params.seed is None:
            raise InvalidRequest("a request comes with its seed", param="seed")
        params.verify(vocab_size=self.vocab_size)
        self._check_fields(message)
        for name, token_ids in (("prompt", message.prompt_token_ids), ("output_token_ids", message.output_token_ids)):
            if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
                raise InvalidRequest(f"a token id is outside the vocabulary of {self.vocab_size}", param=name)
        return Request.from_engine_core_request(message, client_index, params.seed)

    def _check_fields(self, message: EngineCoreRequest) -> None:
        checks = {
            "request_id": 0 < len(message.request_id) <= limits.MAX_INNER_REQUEST_ID_CHARS,
            "cache_salt": message.cache_salt is None or 0 < len(message.cache_salt) <= limits.MAX_CACHE_SALT_CHARS,
            "eos_token_id": message.eos_token_id is None or 0 <= message.eos_token_id < self.vocab_size,
            "child_index": 0 <= message.child_index < limits.MAX_CHOICES,
            "attempt": message.attempt >= 0,
        }
        for name, is_in_range in checks.items():
            if not is_in_range:
                raise InvalidRequest(f"{name} is out of range", param=name)

    def abort_requests(self, request_ids: Iterable[str], client_index: ClientIndex) -> int:
        """Ends the client's requests and frees their blocks at once; ids of others, or of none, are left alone.

        Returns how many ended. They produce no output: who aborts knows.
        """
        return len(self.scheduler.abort_requests(request_ids, client_index))

    def abort_client(self, client_index: ClientIndex) -> int:
        """Ends every request of a client that is gone. Returns how many there were."""
        return len(self.scheduler.abort_client(client_index))

    def abort_all(self) -> dict[ClientIndex, EngineCoreOutputs]:
        """Ends every request with the finish reason abort: what each client is to be told."""
        return self.scheduler.abort_all(self._clock())

    def has_requests(self) -> bool:
        """Whether a step is needed."""
        return self.scheduler.has_requests()

    def step(self, on_executed: Callable[[], None] = _nothing) -> dict[ClientIndex, EngineCoreOutputs]:
        """Runs one step. `on_executed` is called between execute and update: aborts that arrived meanwhile take effect
        before their tokens become outputs.
        """
        plan = self.scheduler.schedule(self._clock())
        result = self.executor.execute_model(plan)
        on_executed()
        return self.scheduler.update(plan, result, self._clock())

    def stats(self) -> SchedulerStats:
        return self.scheduler.stats()


def error_output(message: EngineCoreRequest, error: RoundhouseError) -> EngineCoreOutput:
    """The output that ends `message` with `error`, for that request alone."""
    return _last_output(message, FinishReason.ERROR, OutputError(error.code, error.message, error.param))


def abort_output(message: EngineCoreRequest) -> EngineCoreOutput:
    """The output that turns `message` away from an engine that is leaving."""
    return _last_output(message, FinishReason.ABORT)


def _last_output(
    message: EngineCoreRequest, finish_reason: FinishReason, error: OutputError | None = None
) -> EngineCoreOutput:
    return EngineCoreOutput(
        request_id=message.request_id,
        attempt=message.attempt,
        first_token_index=len(message.output_token_ids),
        new_token_ids=[],
        finish_reason=finish_reason,
        error=error,
    )
