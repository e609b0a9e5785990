"""`AsyncLLM`: online inference on the engines of an `EngineCoreClient`. The whole trip of a request is on this page.

One task, the `output_handler`, takes what the engines send; every caller waits at a collector of its own. All of it
belongs to one event loop. Names and behaviour are vLLM's.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict, Unpack

from roundhouse import clock
from roundhouse.frontend.collector import RequestOutputCollector
from roundhouse.frontend.config import FrontendConfig
from roundhouse.frontend.core_client import EngineCoreClient, EngineView
from roundhouse.frontend.faults import is_fault
from roundhouse.frontend.input_processor import InputProcessor, ParsedRequest, Prompt
from roundhouse.frontend.output_processor import OutputProcessor
from roundhouse.frontend.outputs import RequestOutput, RequestOutputKind
from roundhouse.frontend.stats import EngineSample, IterationStats, StatLogger
from roundhouse.model_store.tokenizer import Tokenizer
from roundhouse.protocol.errors import (
    EngineDeadError,
    EngineGenerateError,
    InvalidRequest,
    RoundhouseError,
    ShuttingDown,
)
from roundhouse.protocol.messages import EngineCoreOutputs, EngineCoreRequest, Hello, PoolingParams
from roundhouse.protocol.sampling import SamplingParams

logger = logging.getLogger(__name__)


class RequestOptions(TypedDict, total=False):
    """What may go with any request; see `AsyncLLM.add_request`."""

    arrival_time: float | None
    lora_request: Any
    tokenization_kwargs: Mapping[str, Any] | None
    trace_headers: dict[str, str] | None
    priority: int
    data_parallel_rank: int | None


class AsyncLLM:
    """Owns `client`, and closes it in `shutdown`. `random_bits(k)` gives k random bits: seeds and id suffixes."""

    def __init__(
        self,
        config: FrontendConfig,
        tokenizer: Tokenizer,
        client: EngineCoreClient,
        *,
        stat_loggers: Sequence[StatLogger] = (),
        monotonic: clock.Clock = clock.monotonic,
        wall: clock.Clock = clock.wall,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self.client = client
        self.input_processor = InputProcessor(tokenizer, random_bits, pooling_tasks=config.pooling_tasks)
        self.output_processor = OutputProcessor(tokenizer)
        self._config = config
        self._model_max_len = min(tokenizer.max_model_len, config.max_model_len or tokenizer.max_model_len)
        self._stat_loggers = list(stat_loggers)
        self._monotonic = monotonic
        self._wall = wall
        self._random_bits = random_bits
        self._tokenize_threads = ThreadPoolExecutor(config.tokenize_threads, thread_name_prefix="tokenize")
        self._grammar_threads = ThreadPoolExecutor(1, thread_name_prefix="grammar-check")
        self._output_handler: asyncio.Task[None] | None = None
        self._dead_error: RoundhouseError | None = None
        self._is_shut_down = False

    @property
    def is_running(self) -> bool:
        """Outputs are being handled, or will be from the first request on."""
        return not self._is_shut_down and self._dead_error is None

    @property
    def errored(self) -> bool:
        """The output handler failed: no request can ever end well again. A lost engine is no such failure."""
        return self._dead_error is not None

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together, as most of the engines that are here can hold them.

        Not as the smallest one can: a single engine, in wrong hands or in the middle of a rollout, would decide what
        all others serve. It gets what fits there (`LiveRequest.fits`). Between equals the larger number counts.
        """
        counts = Counter(view.hello.max_model_len for view in self.client.engines())
        common = max(counts, key=lambda length: (counts[length], length), default=self._model_max_len)
        return min(self._model_max_len, common)

    @property
    def num_live_requests(self) -> int:
        """Choices whose callers wait for more, and requests whose prompt is still worked on."""
        return len(self.output_processor.request_states) + len(self.output_processor.reservations)

    def engines(self) -> list[EngineView]:
        return self.client.engines()

    def start(self) -> None:
        """Begins to handle outputs, in the running event loop. Idempotent; the first request does it otherwise."""
        if self._output_handler is None and self.is_running:
            self._output_handler = asyncio.create_task(self._handle_outputs(), name="output_handler")

    async def wait_for_engine(self) -> Hello:
        """Returns when an engine can take requests."""
        self.start()
        return await self.client.wait_for_engine()

    async def check_health(self) -> None:
        """Raises `EngineDeadError` when `errored`."""
        self._check_alive()

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs until one is `finished`. A caller that leaves early aborts the request, in its engine as well.

        Raises what `add_request` raises, the error that the request ended with, or `EngineGenerateError`.
        """
        return self._outputs(prompt, sampling_params, request_id, output_kind, options)

    def encode(
        self, prompt: Prompt, pooling_params: PoolingParams, request_id: str, **options: Unpack[RequestOptions]
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields one output, which has a `pooling_output`. Otherwise as `generate`."""
        return self._outputs(prompt, pooling_params, request_id, RequestOutputKind.FINAL_ONLY, options)

    async def _outputs(
        self,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        request_id: str,
        output_kind: RequestOutputKind,
        options: RequestOptions,
    ) -> AsyncGenerator[RequestOutput, None]:
        collector: RequestOutputCollector | None = None
        try:
            collector = await self.add_request(request_id, prompt, params, output_kind=output_kind, **options)
            finished = False
            while not finished:
                output = collector.get_nowait() or await collector.get()
                finished = output.finished
                yield output
        except RoundhouseError:
            raise  # the request ended with it
        except (asyncio.CancelledError, GeneratorExit):
            await self._abort_collected(request_id, collector)
            raise
        except Exception as error:
            logger.exception("a request failed in the frontend", extra={"request_id": request_id})
            await self._abort_collected(request_id, collector)
            raise EngineGenerateError("the request failed in the frontend") from error

    async def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        *,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
    ) -> RequestOutputCollector:
        """Gives the request to an engine; what comes of it is got from the collector, and must be, or `abort`ed.

        arrival_time: wall clock, when the request came in. Raises `EngineDeadError` when `errored`, a `RequestError`
        for what cannot be served (`DuplicateRequestId` while another request has the id) and what the client raises;
        then nothing of the request is left, here or in an engine.
        """
        self._check_alive()
        if lora_request is not None:
            raise InvalidRequest("this model is served without adapters", param="lora_request")
        now_wall = self._wall()
        arrival_time = now_wall if arrival_time is None else arrival_time
        arrival_s = self._monotonic() - max(0.0, now_wall - arrival_time)
        max_model_len = self.max_model_len
        parsed = self.input_processor.parse(prompt, params, tokenization_kwargs, max_model_len)
        reservation = self.output_processor.reserve(request_id, output_kind, parsed.num_choices)
        self.start()
        try:
            token_ids = await self._tokenize(parsed)
            if parsed.has_grammar:
                await self._check_grammar(parsed)
            children = self.input_processor.make_requests(
                f"{request_id}-{self._random_bits(32):08x}",
                parsed,
                token_ids,
                max_model_len=max_model_len,
                arrival_time=arrival_time,
                priority=priority,
                data_parallel_rank=data_parallel_rank,
                trace_headers=trace_headers,
            )
        except BaseException:
            self.output_processor.release(request_id, reservation)
            raise
        if self.output_processor.is_reserved(request_id, reservation):
            self.output_processor.add_request(request_id, parsed, children, arrival_s=arrival_s)
            await self._send(request_id, children, reservation.collector)
        return reservation.collector

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends the requests: their callers get what there is, with finish reason "abort". Unknown ids are ignored."""
        iteration = IterationStats()
        request_ids = [request_id] if isinstance(request_id, str) else request_id
        to_abort = self.output_processor.abort_requests(request_ids, self._monotonic(), iteration)
        self._record(iteration, None)
        if to_abort:
            await self.client.abort_requests_async(to_abort)

    def shutdown(self) -> None:
        """Ends every request with `ShuttingDown` and closes the client. Idempotent."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        if self._output_handler is not None:
            self._output_handler.cancel()
        self._fail_all(ShuttingDown("the frontend shuts down"))
        self._tokenize_threads.shutdown(wait=False)
        self._grammar_threads.shutdown(wait=False)
        self.client.shutdown()

    def _check_alive(self) -> None:
        if self._dead_error is not None:
            raise EngineDeadError(f"the frontend cannot hear its engines: {self._dead_error}") from self._dead_error
        if self._is_shut_down:
            raise ShuttingDown("the frontend shuts down")

    async def _tokenize(self, parsed: ParsedRequest) -> list[int]:
        """On another thread when it would hold up the event loop; the tokenizer lets other threads run."""
        if parsed.text is None or len(parsed.text) <= self._config.tokenize_in_thread_above_chars:
            return self.input_processor.tokenize(parsed)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._tokenize_threads, self.input_processor.tokenize, parsed)

    async def _check_grammar(self, parsed: ParsedRequest) -> None:
        """Nothing that cannot be compiled reaches an engine. On another thread: the library lets other threads run."""
        loop = asyncio.get_running_loop()
        check = loop.run_in_executor(self._grammar_threads, self.input_processor.check_grammar, parsed)
        try:
            await asyncio.wait_for(check, self._config.grammar_check_s)
        except TimeoutError:
            raise InvalidRequest("the grammar takes too long to compile", param="structured_outputs") from None

    async def _send(
        self, request_id: str, children: list[EngineCoreRequest], collector: RequestOutputCollector
    ) -> None:
        live = self.output_processor.request_states
        try:
            for child in children:
                if child.request_id not in live:
                    continue
                await self.client.add_request_async(child)
                if child.request_id not in live:
                    # It ended while it was on its way, and its abort may have been ahead of it.
                    await self.client.abort_requests_async([child.request_id])
        except RoundhouseError as error:
            if self.output_processor.is_collected_by(request_id, collector):
                iteration = IterationStats()
                sent = self.output_processor.fail_request(request_id, error, self._monotonic(), iteration)
                self._record(iteration, None)
                await self.client.abort_requests_async(sent)
            raise
        except BaseException:
            await self._abort_collected(request_id, collector)
            raise

    async def _abort_collected(self, request_id: str, collector: RequestOutputCollector | None) -> None:
        """Aborts the request that `collector` belongs to, not another one that has its id by now."""
        if collector is not None and self.output_processor.is_collected_by(request_id, collector):
            await self.abort(request_id)

    async def _handle_outputs(self) -> None:
        try:
            while True:
                await self._handle_batch(await self.client.get_output_async())
        except BaseException as error:
            if not is_fault(error):
                raise
            logger.exception("the output handler failed; every request ends")
            failure = (
                error if isinstance(error, RoundhouseError) else EngineDeadError(f"the output handler failed: {error}")
            )
            self._dead_error = failure
            self._fail_all(failure)

    async def _handle_batch(self, batch: EngineCoreOutputs) -> None:
        iteration = IterationStats()
        step = self._config.output_slice
        for start in range(0, len(batch.outputs), step):
            to_abort = self.output_processor.process_outputs(
                batch, batch.outputs[start : start + step], self._monotonic(), iteration
            )
            if to_abort:
                await self.client.abort_requests_async(to_abort)
            await asyncio.sleep(0)  # the callers' turn
        sample = None
        if batch.scheduler_stats is not None:
            sample = EngineSample((batch.engine_index, batch.epoch), batch.scheduler_stats)
        self._record(iteration, sample)

    def _fail_all(self, error: RoundhouseError) -> None:
        iteration = IterationStats()
        self.output_processor.fail_all(error, self._monotonic(), iteration)
        self._record(iteration, None)

    def _record(self, iteration: IterationStats, sample: EngineSample | None) -> None:
        for stat_logger in self._stat_loggers:
            stat_logger.record(iteration, sample)
