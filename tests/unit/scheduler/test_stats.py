from __future__ import annotations

from roundhouse.protocol.messages import SchedulerStats
from roundhouse.scheduler.stats import Totals


def test_a_snapshot_holds_the_moment_and_the_totals() -> None:
    totals = Totals(num_steps=1, num_scheduled_tokens=2, num_preemptions=3, num_generation_tokens=4)
    totals.count_admission(num_prompt_tokens=10, num_queried_tokens=10, num_cached_tokens=8)
    totals.count_admission(num_prompt_tokens=5, num_queried_tokens=0, num_cached_tokens=0)
    assert totals.snapshot(num_running_reqs=6, num_waiting_reqs=7, kv_cache_usage=0.5) == SchedulerStats(
        num_running_reqs=6,
        num_waiting_reqs=7,
        kv_cache_usage=0.5,
        num_steps_total=1,
        num_scheduled_tokens=2,
        prefix_cache_queries_total=10,
        prefix_cache_hits_total=8,
        num_preemptions_total=3,
        num_prompt_tokens_total=15,
        num_generation_tokens_total=4,
    )
