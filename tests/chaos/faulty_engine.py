"""A nursery (`tests.support.engine_nursery`) of engines that fail on certain tokens of a prompt, and serve all other
requests as ever:

    KILLS       the process ends at once, as by a segmentation fault
    SLEEPS      the step that takes the request in lasts `BUSY_S` longer; other threads run
    HOLDS_GIL   the same, and no other thread runs meanwhile
"""

from __future__ import annotations

import ctypes
import os
import time

from roundhouse.runner.sampling_rows import SamplingRows
from roundhouse.scheduler.step import NewRequest
from tests.support import engine_nursery

KILLS = 40_001
SLEEPS = 40_002
HOLDS_GIL = 40_003
BUSY_S = 10

_add_as_before = SamplingRows.add


def faulty_add(rows: SamplingRows, row: int, request: NewRequest) -> None:
    prompt = request.token_ids[: request.num_prompt_tokens]
    if KILLS in prompt:
        os._exit(139)
    if SLEEPS in prompt:
        time.sleep(BUSY_S)
    if HOLDS_GIL in prompt:
        ctypes.PyDLL(None).sleep(BUSY_S)
    _add_as_before(rows, row, request)


if __name__ == "__main__":
    SamplingRows.add = faulty_add  # type: ignore[method-assign]
    engine_nursery.main()
