"""`ScriptedClient`: an `EngineCoreClient` without engines. The test says what they send and sees what they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from roundhouse.frontend.core_client import EngineCoreClient, EngineView
from roundhouse.protocol.errors import NoEngine
from roundhouse.protocol.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    Hello,
    LogprobsLists,
    OutputError,
    SchedulerStats,
)
from roundhouse.protocol.sampling import FinishReason

HELLO = Hello(
    identity="engine-0",
    epoch=(1, 1),
    nonce=bytes(16),
    protocol_versions=[1],
    model="tiny",
    resume_key="key",
    block_size=16,
    num_blocks=64,
    max_model_len=96,
    max_num_seqs=8,
    max_message_bytes=2**20,
)

Script = Callable[[EngineCoreRequest], Iterable[EngineCoreOutput]]


def output(
    request: EngineCoreRequest,
    token_ids: Iterable[int] = (),
    finish_reason: FinishReason | None = None,
    *,
    first: int = 0,
    error: OutputError | None = None,
    logprobs: LogprobsLists | None = None,
    **more: Any,
) -> EngineCoreOutput:
    """`first`: how many tokens of the request came before these."""
    return EngineCoreOutput(
        request.request_id,
        request.attempt,
        first,
        list(token_ids),
        finish_reason,
        error=error,
        new_logprobs=logprobs,
        **more,
    )


def one_by_one(
    request: EngineCoreRequest, token_ids: Iterable[int], finish_reason: FinishReason = FinishReason.LENGTH
) -> list[EngineCoreOutput]:
    """An output for each token, the last one with the finish reason."""
    ids = list(token_ids)
    return [
        output(request, [token_id], finish_reason if place == len(ids) - 1 else None, first=place)
        for place, token_id in enumerate(ids)
    ]


class ScriptedClient(EngineCoreClient):
    """`script` answers each request at once, an output a message; without one the test calls `send`.

    added, aborted: what the engines were told, in order. refusal: what `add_request_async` raises instead.
    before_add: awaited in each `add_request_async`, so that a test can act while a request is on its way.
    """

    def __init__(self, script: Script | None = None, *, hello: Hello = HELLO) -> None:
        self.added: list[EngineCoreRequest] = []
        self.aborted: list[str] = []
        self.refusal: Exception | None = None
        self.before_add: Callable[[EngineCoreRequest], Any] | None = None
        self.load = SchedulerStats()
        self.hello: Hello | None = hello
        self.is_shut_down = False
        self._script = script
        self._queue: asyncio.Queue[EngineCoreOutputs | Exception] = asyncio.Queue()

    def send(self, *outputs: EngineCoreOutput, stats: SchedulerStats | None = None, timestamp: float = 0.0) -> None:
        """One message from the engine."""
        self.send_batch(
            EngineCoreOutputs(epoch=HELLO.epoch, outputs=list(outputs), scheduler_stats=stats, timestamp=timestamp)
        )

    def send_batch(self, batch: EngineCoreOutputs) -> None:
        self._queue.put_nowait(batch)

    def fail(self, error: Exception) -> None:
        """Ends the client's reader."""
        self._queue.put_nowait(error)

    async def settle(self) -> None:
        """Returns when everything sent so far was handled and its consumers had their turn."""
        for _ in range(8 + 4 * self._queue.qsize()):
            await asyncio.sleep(0)

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        if self.before_add is not None:
            await self.before_add(request)
        if self.refusal is not None:
            raise self.refusal
        self.added.append(request)
        for item in self._script(request) if self._script else ():
            self.send(item)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.aborted += request_ids

    async def get_output_async(self) -> EngineCoreOutputs:
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item

    async def call_utility_async(self, method: str, *args: Any, engine_index: int | None = None) -> list[Any]:
        raise NoEngine("a scripted engine has no utilities")

    def engines(self) -> list[EngineView]:
        if self.hello is None:
            return []
        return [EngineView(self.hello.identity, 0, "admitted", self.hello, self.load, 0, 0.0)]

    @property
    def num_waiting(self) -> int:
        return 0

    def drain_engine(self, identity: str) -> bool:
        return False

    async def wait_for_engine(self) -> Hello:
        assert self.hello is not None
        return self.hello

    def shutdown(self) -> None:
        self.is_shut_down = True
