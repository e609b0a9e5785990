"""What must hold of the scheduler's maps between any two calls: for tests and for hunting a bug."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from roundhouse.kvcache.manager import KVCacheManager
from roundhouse.scheduler.request import Request, RequestStatus


def validate_requests(
    live: Mapping[str, Request], waiting: Iterable[Request], running: Mapping[str, Request], kv_cache: KVCacheManager
) -> None:
    """Raises AssertionError that names every request that is lost, doubled or in the wrong place."""
    waiting_ids = [request.request_id for request in waiting]
    problems: list[str] = []
    if kv_cache.request_ids != set(running):
        problems.append(f"block tables and running requests differ by {kv_cache.request_ids ^ set(running)}")
    if sorted([*waiting_ids, *running]) != sorted(live):
        problems.append(f"live {sorted(live)}, but waiting {sorted(waiting_ids)} and running {sorted(running)}")
    for request_id, request in live.items():
        is_running = request.status is RequestStatus.RUNNING
        if request.is_finished or is_running != (request_id in running):
            problems.append(f"{request_id} is {request.status.name} in the wrong place")
        if request.num_computed_tokens > (request.num_tokens if is_running else 0):
            problems.append(f"{request_id} has {request.num_computed_tokens} of {request.num_tokens} tokens computed")
    if problems:
        raise AssertionError("; ".join(problems))
