"""What `schedule` and `update` cost a decode step, with nothing around them."""

from __future__ import annotations

import statistics
import time

from roundhouse.scheduler.step import ModelRunnerOutput
from tests.support import builders

PROMPT_TOKENS = 128
MAX_MODEL_LEN = 2048
BLOCK_SIZE = 16
TOKEN = 7


def step_us(num_streams: int, *, num_steps: int = 500) -> float:
    """Microseconds a step, the median."""
    scheduler = builders.scheduler(
        num_blocks=1 + num_streams * MAX_MODEL_LEN // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=num_streams,
        max_num_batched_tokens=num_streams * PROMPT_TOKENS,
    )
    for index in range(num_streams):
        prompt = range(1000 * index, 1000 * index + PROMPT_TOKENS)
        scheduler.add_request(builders.request(f"r{index}", prompt, max_tokens=None, ignore_eos=True), 0.0)
    seconds: list[float] = []
    for _ in range(num_steps + 1):
        started = time.perf_counter()
        plan = scheduler.schedule(0.0)
        scheduled = time.perf_counter()
        result = ModelRunnerOutput({request_id: [TOKEN] for request_id in plan.num_scheduled_tokens})
        assert len(result.sampled_token_ids) == num_streams
        executed = time.perf_counter()
        scheduler.update(plan, result, 0.0)
        seconds.append(scheduled - started + time.perf_counter() - executed)
    # The first step is the prompts'.
    return statistics.median(seconds[1:]) * 1e6
