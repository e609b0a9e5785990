from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from roundhouse.scheduler.config import Policy
from roundhouse.scheduler.queue import RequestQueue
from roundhouse.scheduler.request import Request
from tests.support.builders import request


def arrived(index: int, **fields: Any) -> Request:
    made = request(f"r{index}", **fields)
    made.arrival_index = index
    return made


def order(queue: RequestQueue) -> list[str]:
    return [queue.pop().external_request_id for _ in range(len(queue))]


def filled(policy: Policy, requests: list[Request]) -> RequestQueue:
    queue = RequestQueue(policy)
    for one in requests:
        queue.add(one)
    return queue


def test_first_come_first_served_by_the_engines_own_order() -> None:
    # The clocks of two frontends differ, so the order in which requests came decides, not what they say.
    assert order(filled("fcfs", [arrived(1, arrival_time=50.0), arrived(2, arrival_time=3.0)])) == ["r1", "r2"]


def test_requests_under_way_go_ahead_by_their_original_arrival() -> None:
    preempted = arrived(2, arrival_time=20.0)
    preempted.num_preemptions = 1
    resumed = arrived(4, arrival_time=10.0, outputs=[5])
    for policy in ("fcfs", "priority"):
        queue = filled(policy, [arrived(1, arrival_time=1.0), preempted, arrived(3, arrival_time=30.0), resumed])
        assert order(queue) == ["r4", "r2", "r1", "r3"]


def test_priority_comes_before_everything_else() -> None:
    under_way = arrived(1, priority=1, outputs=[5])
    requests = [under_way, arrived(2, arrival_time=9.0), arrived(3, arrival_time=8.0), arrived(4, priority=-1)]
    assert order(filled("priority", requests)) == ["r4", "r3", "r2", "r1"]


def test_a_removed_request_is_gone_and_may_come_back() -> None:
    one, two = arrived(1), arrived(2)
    queue = filled("fcfs", [one, two])
    queue.remove(one)
    assert (len(queue), one.request_id in queue, queue.peek()) == (1, False, two)
    queue.add(one)
    assert queue.peek() is one
    assert set(queue) == {one, two}
    assert order(queue) == ["r1", "r2"]


def test_aborts_leave_nothing_behind() -> None:
    queue = RequestQueue("fcfs")
    for index in range(1000):
        queue.add(arrived(index))
    for one in list(queue):
        queue.remove(one)
        assert len(queue._heap) <= 2 * len(queue) + 16
    assert (len(queue), list(queue)) == (0, [])


@given(
    st.sampled_from(["fcfs", "priority"]),
    st.lists(st.one_of(st.none(), st.tuples(st.integers(-2, 2), st.integers(0, 3), st.booleans())), max_size=60),
    st.randoms(use_true_random=False),
)
def test_pops_what_sorting_would(policy: Policy, operations: list[tuple[int, int, bool] | None], random: Any) -> None:
    """None removes a random one; the rest adds (priority, arrival time, under way)."""
    queue = RequestQueue(policy)
    model: dict[str, tuple[Any, Request]] = {}
    for index, operation in enumerate(operations):
        if operation is None:
            if model:
                queue.remove(model.pop(random.choice(sorted(model)))[1])
            continue
        priority, arrival_time, under_way = operation
        one = arrived(index, priority=priority, arrival_time=float(arrival_time), outputs=[5] * under_way)
        if policy == "priority":
            rank = (priority, not under_way, arrival_time, index)
        else:
            rank = (0, arrival_time, index) if under_way else (1, 0, index)
        model[one.request_id] = (rank, one)
        queue.add(one)
    by_rank = sorted(model.values(), key=lambda pair: pair[0])
    assert order(queue) == [one.external_request_id for _, one in by_rank]
