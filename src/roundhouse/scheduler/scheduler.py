"""`Scheduler`: which tokens of which requests are computed in the next step, and what becomes of their results.

There is no prefill and no decode: each request has computed tokens, which chase its tokens. One budget of tokens a step
goes to the running requests first, in the order in which they were admitted, then to the waiting ones; a long prompt
takes several steps. Whoever runs out of blocks takes those of the last one, which computes its tokens again later.
The idea is vLLM's V1 scheduler; docs/kvcache.md tells what it relies on.

The engine core calls `schedule`, runs the model, calls `update`: one step at a time. In between it may add and abort.
"""

from __future__ import annotations

from collections.abc import Iterable

from roundhouse.kvcache.config import CacheConfig
from roundhouse.kvcache.manager import KVCacheManager
from roundhouse.protocol.block_hash import extend_chain
from roundhouse.protocol.errors import RoundhouseError
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import EngineCoreEvent, EngineCoreOutputs, EventType, SchedulerStats
from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.admission import check_admissible
from roundhouse.scheduler.config import SchedulerConfig
from roundhouse.scheduler.outputs import Outbox, make_output
from roundhouse.scheduler.queue import RequestQueue
from roundhouse.scheduler.request import (
    ENDINGS,
    Abort,
    Preempt,
    Request,
    RequestStatus,
    Schedule,
    engine_request_id,
)
from roundhouse.scheduler.stats import Totals
from roundhouse.scheduler.step import ModelRunnerOutput, SchedulerOutput
from roundhouse.scheduler.step_builder import StepBuilder
from roundhouse.scheduler.stop import find_end
from roundhouse.scheduler.update import advance_request
from roundhouse.scheduler.validate import validate_requests


class Scheduler:
    """The requests of one engine, from `add_request` to their one finish reason."""

    def __init__(self, config: SchedulerConfig, cache_config: CacheConfig) -> None:
        self.config = config
        self.kv_cache = KVCacheManager(cache_config)
        self._requests: dict[str, Request] = {}
        self._waiting = RequestQueue(config.policy)
        self._running: dict[str, Request] = {}
        """In the order of admission."""
        self._left_rows: list[str] = []
        """Left the running ones since the last step; the runner has rows for them."""
        self._outbox = Outbox()
        self._totals = Totals()
        self._num_arrivals = 0

    # What the engine core asks for between steps.

    def add_request(self, request: Request, now: float) -> None:
        """Queues a new request.

        Raises `DuplicateRequestId` (that id of that client is live), `ContextLengthExceeded`, `PromptNeverFits` or
        `InvalidRequest`, with nothing changed: the request was never the scheduler's. One that resumes although its
        last token ended it, or has outgrown this engine's whole cache, ends at once.
        """
        check_admissible(request, self._requests, self.config, self.kv_cache)
        self._num_arrivals += 1
        request.arrival_index = self._num_arrivals
        request.events.append(EngineCoreEvent(EventType.QUEUED, now))
        self._requests[request.request_id] = request
        self._waiting.add(request)
        if request.num_output_tokens > 0:
            end = find_end(request, self.config.max_model_len)
            if end is not None:
                self._finish(request, end.finish_reason, stop_reason=end.stop_reason)
                return
            if not self.kv_cache.can_ever_hold(request.num_tokens):
                self._finish(request, FinishReason.LENGTH)
                return
        self._extend_block_hashes(request)

    def abort_requests(
        self, request_ids: Iterable[str], client_index: ClientIndex, *, answer: bool = False
    ) -> list[Request]:
        """Ends the client's requests and frees their blocks at once; returns those that ended. Ids that are unknown, or
        ended already, are ignored. No output tells of it unless `answer`: whoever aborts knows.
        """
        keys = [engine_request_id(request_id, client_index) for request_id in request_ids]
        return self._abort([self._requests[key] for key in dict.fromkeys(keys) if key in self._requests], answer=answer)

    def abort_client(self, client_index: ClientIndex) -> list[Request]:
        """Ends every request of a client that is gone, and forgets what it was to be told. Returns those that ended."""
        self._outbox.drop(client_index)
        return self._abort([r for r in self._requests.values() if r.client_index == client_index], answer=False)

    def abort_all(self, now: float) -> dict[ClientIndex, EngineCoreOutputs]:
        """Ends every request with the finish reason abort and returns all that the clients are still to be told."""
        self._abort(list(self._requests.values()), answer=True)
        return self._outbox.take(self.stats(), now)

    def fail_request(self, request_id: str, client_index: ClientIndex, error: RoundhouseError) -> None:
        """Ends one request with `error`; the next `update` tells its client. An id that is not live is ignored."""
        request = self._requests.get(engine_request_id(request_id, client_index))
        if request is not None:
            self._finish(request, FinishReason.ERROR, error=error)

    def has_requests(self) -> bool:
        """Whether a step is needed: for a request, to have the runner drop rows, or to tell a client of an end."""
        return bool(self._requests or self._left_rows or self._outbox)

    def stats(self) -> SchedulerStats:
        return self._totals.snapshot(
            num_running_reqs=len(self._running),
            num_waiting_reqs=len(self._waiting),
            kv_cache_usage=self.kv_cache.usage,
        )

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached blocks. False, with nothing changed, while a request holds one."""
        return self.kv_cache.reset_prefix_cache()

    # A step: schedule, then update.

    def schedule(self, now: float) -> SchedulerOutput:
        """The plan of the next step, which may be empty. `now` is the time of its events. O(running + admitted)."""
        step = StepBuilder(self.config.max_num_batched_tokens)
        self._schedule_running(step, now)
        if not step.has_preempted:
            self._schedule_waiting(step, now)
        left_rows, self._left_rows = self._left_rows, []
        return step.build(left_rows)

    def _schedule_running(self, step: StepBuilder, now: float) -> None:
        """Every running request gets its next tokens, as long as the budget lasts."""
        for request in list(self._running.values()):
            if step.token_budget == 0:
                break
            if request.request_id not in self._running:
                continue  # gave its blocks to one before it
            new_block_ids = self._grow(request, step, now)
            if new_block_ids is not None:
                step.continue_request(request.request_id, self._chunk(request, step), new_block_ids)

    def _grow(self, request: Request, step: StepBuilder, now: float) -> list[int] | None:
        """New blocks for all tokens of `request`, which may be none. None when it had to stop running instead."""
        while True:
            new_block_ids = self.kv_cache.allocate_slots(request.request_id, request.num_tokens)
            if new_block_ids is not None:
                return new_block_ids
            if not self.kv_cache.can_ever_hold(request.num_tokens):
                self._finish(request, FinishReason.LENGTH)  # the whole pool would not do
                return None
            victim = self._choose_victim()
            self._preempt(victim, step, now)
            if victim is request:
                return None

    def _schedule_waiting(self, step: StepBuilder, now: float) -> None:
        """Admits waiting requests in order, up to the first that finds no room, or whose grammar is the step's second
        one: none overtakes it."""
        while (
            step.token_budget > 0
            and len(self._waiting) > 0
            and len(self._running) < self.config.max_num_seqs
            # Each needs at least one block of its own, for a hit leaves the last token out.
            and self.kv_cache.num_free_blocks > 0
        ):
            request = self._waiting.peek()
            if not step.can_begin(request.sampling_params.structured_outputs) or not self._admit(request, now):
                break
            self._waiting.pop()
            self._running[request.request_id] = request
            step.start_request(request, self._chunk(request, step), self.kv_cache.block_ids(request.request_id))

    def _admit(self, request: Request, now: float) -> bool:
        """Gives `request` blocks for all its tokens, cached ones first. False, with nothing changed, without room.

        All its blocks at once, although a long prompt needs several steps: prompts admitted chunk by chunk would fill
        the pool halfway and then take each other's blocks.
        """
        # The logits of prompt tokens are not in the cache: whoever wants their logprobs computes them.
        reads_cache = request.sampling_params.prompt_logprobs is None
        hits = self.kv_cache.get_computed_blocks(request.block_hashes, request.num_tokens) if reads_cache else []
        if self.kv_cache.allocate_slots(request.request_id, request.num_tokens, hits) is None:
            return False
        request.num_computed_tokens = len(hits) * self.kv_cache.block_size
        if request.num_cached_tokens is None:
            request.num_cached_tokens = min(request.num_computed_tokens, request.num_prompt_tokens)
            self._totals.count_admission(
                num_prompt_tokens=request.num_prompt_tokens,
                num_queried_tokens=request.num_tokens if reads_cache and self.kv_cache.enable_prefix_caching else 0,
                num_cached_tokens=request.num_computed_tokens,
            )
        request.machine.move(Schedule)
        request.events.append(EngineCoreEvent(EventType.SCHEDULED, now))
        return True

    def _chunk(self, request: Request, step: StepBuilder) -> int:
        """How many of the request's uncomputed tokens this step computes."""
        num_tokens = min(request.num_tokens - request.num_computed_tokens, step.token_budget)
        threshold = self.config.long_prefill_token_threshold
        if 0 < threshold < num_tokens and len(self._requests) > 1:
            return threshold
        return num_tokens

    def _choose_victim(self) -> Request:
        """Who gives up its blocks: the one admitted last, or by priority the least urgent, the latest among equals."""
        if self.config.policy == "fcfs":
            return next(reversed(self._running.values()))
        return max(self._running.values(), key=lambda r: (r.priority, r.arrival_time, r.arrival_index))

    def _preempt(self, request: Request, step: StepBuilder, now: float) -> None:
        """Takes the request's blocks and this step's tokens; it waits ahead of new ones."""
        request.machine.move(Preempt)
        step.take_back(request.request_id)
        self._stop_running(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self._totals.num_preemptions += 1
        request.events.append(EngineCoreEvent(EventType.PREEMPTED, now))
        self._waiting.add(request)

    def update(
        self, scheduler_output: SchedulerOutput, runner_output: ModelRunnerOutput, now: float
    ) -> dict[ClientIndex, EngineCoreOutputs]:
        """Takes the result of the plan that `schedule` gave last; returns what each client is to be told, a message
        for each that is told anything. Requests that were aborted since then are left out.
        """
        block_size = self.kv_cache.block_size
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            request = self._running.get(request_id)
            if request is None:
                continue  # aborted during the step, and perhaps added again: that one waits
            num_full_blocks = request.num_computed_tokens // block_size
            output = advance_request(request, num_tokens, runner_output, self.config.max_model_len)
            if request.num_computed_tokens // block_size > num_full_blocks:
                self._extend_block_hashes(request)
                self.kv_cache.cache_blocks(request_id, request.block_hashes, request.num_computed_tokens)
            if output is None:
                continue
            self._totals.num_generation_tokens += len(output.new_token_ids)
            self._outbox.put(request.client_index, output)
            if output.finish_reason is FinishReason.ERROR:
                self.kv_cache.forget(request_id)  # keys and values that are not finite would fail the next one too
            if output.finish_reason is not None:
                self._forget(request, ENDINGS[output.finish_reason])
        self._totals.num_steps += 1
        self._totals.num_scheduled_tokens = scheduler_output.total_num_scheduled_tokens
        return self._outbox.take(self.stats(), now)

    # How a request leaves.

    def _abort(self, requests: list[Request], *, answer: bool) -> list[Request]:
        for request in requests:
            if answer:
                self._finish(request, FinishReason.ABORT)
            else:
                self._forget(request, Abort)
        return requests

    def _finish(
        self,
        request: Request,
        finish_reason: FinishReason,
        *,
        stop_reason: int | None = None,
        error: RoundhouseError | None = None,
    ) -> None:
        """Ends a request without a new token and has its client told."""
        output = make_output(request, [], finish_reason=finish_reason, stop_reason=stop_reason, error=error)
        self._outbox.put(request.client_index, output)
        self._forget(request, ENDINGS[finish_reason])

    def _forget(self, request: Request, ending: type) -> None:
        """Takes an ended request out of every map."""
        before, _ = request.machine.move(ending)
        del self._requests[request.request_id]
        if before is RequestStatus.RUNNING:
            self._stop_running(request)
        else:
            self._waiting.remove(request)

    def _stop_running(self, request: Request) -> None:
        """Frees the request's blocks at once and has the runner drop its row in the next step."""
        del self._running[request.request_id]
        self.kv_cache.free(request.request_id)
        self._left_rows.append(request.request_id)

    def _extend_block_hashes(self, request: Request) -> None:
        if self.kv_cache.enable_prefix_caching:
            extend_chain(request.block_hashes, request.root_hash, request.token_ids, self.kv_cache.block_size)

    def validate_state(self) -> None:
        """Raises AssertionError when a request or a block is lost, doubled or in the wrong place. For tests."""
        self.kv_cache.validate_state()
        validate_requests(self._requests, self._waiting, self._running, self.kv_cache)
