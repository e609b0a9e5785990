"""`RequestOutputCollector`: the one output that waits for a request's consumer.

A producer that is ahead does not queue: it merges into what waits, so a slow client costs bigger outputs and no memory
besides the text itself. The idea is vLLM's.
"""

from __future__ import annotations

import asyncio

from roundhouse.frontend.outputs import CompletionOutput, RequestOutput, RequestOutputKind


class RequestOutputCollector:
    """One producer and one consumer of one event loop."""

    __slots__ = ("_error", "_is_delta", "_output", "_waiter")

    def __init__(self, kind: RequestOutputKind) -> None:
        self._is_delta = kind is RequestOutputKind.DELTA
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Hands over `output`, which is merged into the one that waits, if any."""
        if self._output is None:
            self._output = output
        else:
            _merge(self._output, output, is_delta=self._is_delta)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Ends the request: the next get raises `error`, and what waited is dropped. The first error stays."""
        if self._error is None:
            self._error, self._output = error, None
            self._wake()

    def get_nowait(self) -> RequestOutput | None:
        """What waits, or None. Raises what `fail` was given."""
        if self._error is not None:
            raise self._error
        output, self._output = self._output, None
        return output

    async def get(self) -> RequestOutput:
        while (output := self.get_nowait()) is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return output

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _merge(old: RequestOutput, new: RequestOutput, *, is_delta: bool) -> None:
    """`new` into `old`: choices by index, added to each other when they are deltas and replaced when not."""
    old.finished = old.finished or new.finished
    old.num_cached_tokens = max(old.num_cached_tokens, new.num_cached_tokens)
    old.prompt_logprobs = new.prompt_logprobs if old.prompt_logprobs is None else old.prompt_logprobs
    old.pooling_output = new.pooling_output if new.pooling_output is not None else old.pooling_output
    old.kv_transfer_params = new.kv_transfer_params or old.kv_transfer_params
    for choice in new.outputs:
        place = next((i for i, waiting in enumerate(old.outputs) if waiting.index == choice.index), None)
        if place is None:
            old.outputs.append(choice)
        elif is_delta:
            _add(old.outputs[place], choice)
        else:
            old.outputs[place] = choice


def _add(old: CompletionOutput, new: CompletionOutput) -> None:
    old.text += new.text
    old.token_ids += new.token_ids
    if new.logprobs is not None:
        old.logprobs = [*(old.logprobs or ()), *new.logprobs]
    old.cumulative_logprob = new.cumulative_logprob
    old.finish_reason = new.finish_reason
    old.stop_reason = new.stop_reason
