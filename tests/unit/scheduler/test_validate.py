from __future__ import annotations

from collections.abc import Callable

import pytest

from roundhouse.scheduler.request import Abort
from roundhouse.scheduler.scheduler import Scheduler
from tests.support.builders import request, scheduler


def busy() -> Scheduler:
    """r runs, w waits."""
    made = scheduler(max_num_seqs=1)
    for name in "rw":
        made.add_request(request(name, 8), 0.0)
    made.schedule(0.0)
    return made


def test_a_sound_scheduler_passes() -> None:
    busy().validate_state()


def lose_a_waiting_request(made: Scheduler) -> None:
    made._waiting.pop()


def lose_a_running_request(made: Scheduler) -> None:
    del made._running["0:r"]


def free_blocks_too_early(made: Scheduler) -> None:
    made.kv_cache.free("0:r")


def keep_an_ended_request(made: Scheduler) -> None:
    made._requests["0:w"].machine.move(Abort)


def wait_with_computed_tokens(made: Scheduler) -> None:
    made._requests["0:w"].num_computed_tokens = 1


def compute_too_much(made: Scheduler) -> None:
    made._requests["0:r"].num_computed_tokens = 9


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lose_a_waiting_request, r"live \['0:r', '0:w'\], but waiting \[\]"),
        (lose_a_running_request, "0:r is RUNNING in the wrong place"),
        (free_blocks_too_early, "block tables and running requests differ by {'0:r'}"),
        (keep_an_ended_request, "0:w is FINISHED_ABORTED in the wrong place"),
        (wait_with_computed_tokens, "0:w has 1 of 8 tokens computed"),
        (compute_too_much, "0:r has 9 of 8 tokens computed"),
    ],
)
def test_damage_is_named(damage: Callable[[Scheduler], None], told: str) -> None:
    made = busy()
    damage(made)
    with pytest.raises(AssertionError, match=told):
        made.validate_state()
