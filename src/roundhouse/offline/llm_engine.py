"""`LLMEngine`: add requests, step, read what the step brought. `LLM` is a loop around it. The names are vLLM's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from roundhouse import clock
from roundhouse.engine.build import build_engine
from roundhouse.frontend.input_processor import InputProcessor, Prompt
from roundhouse.frontend.output_processor import OutputProcessor
from roundhouse.frontend.outputs import CompletionOutput, RequestOutput, RequestOutputKind
from roundhouse.frontend.parent_request import ParentRequest
from roundhouse.frontend.stats import IterationStats
from roundhouse.model_store import ProgressEvent, Tokenizer, load_tokenizer, resolve_model
from roundhouse.model_store.progress import console_display
from roundhouse.offline.engine_args import EngineArgs
from roundhouse.offline.inproc_client import InprocClient
from roundhouse.protocol.errors import EngineDeadError, InvalidRequest, RoundhouseError
from roundhouse.protocol.messages import SchedulerStats
from roundhouse.protocol.sampling import FinishReason, SamplingParams


class LLMEngine:
    """Belongs to one thread. `random_bits(k)` gives k random bits: the seeds of requests that have none."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        client: InprocClient,
        *,
        max_model_len: int,
        random_bits: Callable[[int], int],
        monotonic: clock.Clock = clock.monotonic,
        wall: clock.Clock = clock.wall,
    ) -> None:
        self.tokenizer = tokenizer
        self.max_model_len = max_model_len
        self._client = client
        self._input_processor = InputProcessor(tokenizer, random_bits)
        self._output_processor = OutputProcessor(tokenizer)
        self._live: dict[str, ParentRequest] = {}
        self._dead_error: EngineDeadError | None = None
        self._monotonic = monotonic
        self._wall = wall

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Finds (downloads, converts) the model, loads it and warms it up.

        Raises `ModelError` or `ConfigError` when the model or a setting is wrong.
        """
        folder = resolve_model(engine_args.model, revision=engine_args.revision)
        tokenizer = load_tokenizer(folder.path)
        config = engine_args.engine_config(folder.path, tokenizer.vocab_size)
        with console_display() as display:
            built = build_engine(
                config, on_progress=lambda done, total: display(ProgressEvent("loading weights", done, total))
            )
        return cls(
            tokenizer,
            InprocClient(built.core),
            max_model_len=min(tokenizer.max_model_len, built.max_model_len),
            random_bits=random.Random(engine_args.seed).getrandbits,
        )

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        arrival_time: float | None = None,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
        *,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
    ) -> None:
        """Queues the request; `step` brings its outputs.

        arrival_time: wall clock, when the request came in. Raises a `RequestError` for what cannot be served
        (`DuplicateRequestId` while another request has the id); then nothing of the request is left.
        """
        self._check_alive()
        if not isinstance(request_id, str) or not isinstance(params, SamplingParams):
            raise InvalidRequest("add_request takes a text as id, then the prompt, then SamplingParams")
        if lora_request is not None:
            raise InvalidRequest("this model is run without adapters", param="lora_request")
        parsed = self._input_processor.parse(prompt, params, tokenization_kwargs, self.max_model_len)
        self._input_processor.check_grammar(parsed)
        reservation = self._output_processor.reserve(request_id, output_kind, parsed.num_choices)
        try:
            children = self._input_processor.make_requests(
                request_id,
                parsed,
                self._input_processor.tokenize(parsed),
                max_model_len=self.max_model_len,
                arrival_time=self._wall() if arrival_time is None else arrival_time,
                priority=priority,
                trace_headers=trace_headers,
            )
        except BaseException:
            self._output_processor.release(request_id, reservation)
            raise
        self._output_processor.add_request(request_id, parsed, children, arrival_s=self._monotonic())
        self._live[request_id] = self._output_processor.parents[request_id]
        for child in children:
            self._client.add_request(child)

    def step(self) -> list[RequestOutput]:
        """Runs one step and returns the requests that have news, each with what its `output_kind` wants now.

        A request that failed is among them, with `error`; it takes no other with it. Raises `EngineDeadError` when the
        engine itself failed, now and from then on: then every request is lost.
        """
        self._check_alive()
        try:
            batch = self._client.get_output()
        except Exception as error:
            self._dead_error = EngineDeadError(f"the engine failed: {type(error).__name__}: {error}")
            self._output_processor.fail_all(self._dead_error, self._monotonic(), IterationStats())
            self._live.clear()
            raise self._dead_error from error
        states = self._output_processor.request_states
        # A dict keeps the order, and names a request once however many of its choices have news.
        touched = {states[out.request_id].parent: None for out in batch.outputs if out.request_id in states}
        to_abort = self._output_processor.process_outputs(batch, batch.outputs, self._monotonic(), IterationStats())
        self._client.abort_requests(to_abort)
        return [output for parent in touched if (output := self._take(parent)) is not None]

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Ends the requests and frees their blocks; `step` says nothing more of them. Unknown ids are ignored."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._client.abort_requests(
            self._output_processor.abort_requests(ids, self._monotonic(), IterationStats()),
        )
        for request_id in ids:
            self._live.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self._live)

    def get_num_unfinished_requests(self) -> int:
        return len(self._live)

    def stats(self) -> SchedulerStats:
        """The scheduler's state after the last step."""
        return self._client.core.stats()

    def reset_prefix_cache(self) -> bool:
        """Forgets what earlier prompts left in the KV cache. False, and nothing is done, while requests run."""
        return self._client.core.scheduler.reset_prefix_cache()

    def _take(self, parent: ParentRequest) -> RequestOutput | None:
        try:
            output = parent.collector.get_nowait()
        except RoundhouseError as error:
            output = _failed(parent, error)
        if output is not None and output.finished:
            del self._live[parent.external_id]
        return output

    def _check_alive(self) -> None:
        if self._dead_error is not None:
            raise EngineDeadError(self._dead_error.message) from self._dead_error


def _failed(parent: ParentRequest, error: RoundhouseError) -> RequestOutput:
    choices = [
        CompletionOutput(index, "", [], finish_reason=str(FinishReason.ERROR)) for index in range(parent.num_choices)
    ]
    output = parent.make_request_output(choices, True, None)
    output.error = error
    return output
