"""`AsyncLLM`: online inference on the engines of an `EngineCoreClient`. The whole trip of a request is on this page.

One task, the `output_handler`, takes what the engines send; every caller waits at a collector of its own. All of it belongs
to one event loop. Names and behaviour are vLLM's.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from roundhouse import clock
from roundhouse.frontend.collector import RequestOutputCollector
from roundhouse.frontend.config import FrontendConfig
from roundhouse.frontend.core_client import EngineCoreClient, EngineView
from roundhouse.frontend.input_processor import InputProcessor, ParsedPrompt, Prompt, RequestOptions
from roundhouse.frontend.output_processor import OutputProcessor
from roundhouse.frontend.outputs import RequestOutput, RequestOutputKind
from roundhouse.frontend.stats import EngineSample, IterationStats, StatLogger
from roundhouse.model_store.tokenizer import Tokenizer
from roundhouse.protocol import limits
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
        self.input_processor = InputProcessor(tokenizer, random_bits)
        self.output_processor = OutputProcessor(tokenizer)
        self._config = config
        self._model_max_len = min(tokenizer.max_model_len, config.max_model_len or tokenizer.max_model_len)
        self._stat_loggers = list(stat_loggers)
        self._monotonic = monotonic
        self._wall = wall
        self._random_bits = random_bits
        self._tokenize_threads = ThreadPoolExecutor(config.tokenize_threads, thread_name_prefix="tokenize")
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
    def dead_error(self) -> RoundhouseError | None:
        """What ended the output handler."""
        return self._dead_error

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together, as the engines that are here can hold them."""
        return min([self._model_max_len, *(view.hello.max_model_len for view in self.client.engines())])

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
        if self._dead_error is not None:
            raise EngineDeadError(f"the output handler ended: {self._dead_error}") from self._dead_error

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
        arrival_time: float | None = None,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: dict[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs until one is `finished`. A caller that leaves early aborts the request in its engine.

        Raises what `add_request` raises, the error that the request ended with, or `EngineGenerateError`.
        """
        collector: RequestOutputCollector | None = None
        try:
            collector = await self.add_request(
                request_id,
                prompt,
                sampling_params,
                arrival_time=arrival_time,
                lora_request=lora_request,
                tokenization_kwargs=tokenization_kwargs,
                trace_headers=trace_headers,
                priority=priority,
                data_parallel_rank=data_parallel_rank,
                output_kind=output_kind,
            )
            finished = False
            while not finished:
                output = collector.get_nowait() or await collector.get()
                finished = output.finished
                yield output
        except RoundhouseError:
            raise
        except (asyncio.CancelledError, GeneratorExit):
            if collector is not None:
                await self._abort_of(request_id, collector)
            raise
        except Exception as error:
            logger.exception("a request failed in the frontend", extra={"request_id": request_id})
            if collector is not None:
                await self._abort_of(request_id, collector)
            raise EngineGenerateError("the request failed in the frontend") from error
