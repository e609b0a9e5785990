"""`Totals`: what the scheduler counts from its start on; with its state of the moment they make `SchedulerStats`."""

from __future__ import annotations

from dataclasses import dataclass

from roundhouse.protocol.messages import SchedulerStats


@dataclass(slots=True)
class Totals:
    """Names as in `SchedulerStats`. num_scheduled_tokens is the last step's alone."""

    num_steps: int = 0
    num_scheduled_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0

    def count_admission(self, *, num_prompt_tokens: int, num_queried_tokens: int, num_cached_tokens: int) -> None:
        """Counts a request's first admission; its returns from preemption would count the same prompt again."""
        self.num_prompt_tokens += num_prompt_tokens
        self.prefix_cache_queries += num_queried_tokens
        self.prefix_cache_hits += num_cached_tokens

    def snapshot(self, *, num_running_reqs: int, num_waiting_reqs: int, kv_cache_usage: float) -> SchedulerStats:
        return SchedulerStats(
            num_running_reqs,
            num_waiting_reqs,
            kv_cache_usage,
            self.num_steps,
            self.num_scheduled_tokens,
            self.prefix_cache_queries,
            self.prefix_cache_hits,
            self.num_preemptions,
            self.num_prompt_tokens,
            self.num_generation_tokens,
        )
