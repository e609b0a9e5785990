"""`roundhouse` with an engine that fails on certain requests: `faulty_engine.py engine MODEL …`.

What it fails on is in the request, so that it serves all others as ever:

    seed SAMPLER_SEED        the sampler raises at the request's third token
    seed PARAMS_SEED         the sampler raises when the request's row is made
    logprobs BAD_LOGPROBS    the logprobs of a sampled token cannot be computed
    prompt_logprobs, same    nor those of a prompt
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from roundhouse.cli.main import main
from roundhouse.runner import prompt_logprobs, sampler
from roundhouse.runner.logprobs import LogprobsRows, compute_logprobs
from roundhouse.runner.model_runner import ModelRunner
from roundhouse.runner.sampler import SamplerOutput, sample
from roundhouse.runner.sampling_rows import SamplingRows
from roundhouse.scheduler.step import NewRequest

SAMPLER_SEED = 666_001
PARAMS_SEED = 666_002
BAD_LOGPROBS = 13
NUM_TOKENS_BEFORE = 2


def faulty_sample(
    logits: torch.Tensor, rows: np.ndarray, num_outputs: np.ndarray, params: SamplingRows
) -> SamplerOutput:
    sampled = sample(logits, rows, num_outputs, params)
    seeds = params.draw(rows, num_outputs).seeds
    if ((seeds == SAMPLER_SEED) & (num_outputs >= NUM_TOKENS_BEFORE)).any():
        raise ZeroDivisionError("injected into the sampler")
    return sampled


def faulty_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, k: int) -> LogprobsRows:
    if k == BAD_LOGPROBS:
        raise ZeroDivisionError("injected into the logprobs")
    return compute_logprobs(logits, token_ids, k)


add_as_before = SamplingRows.add


def faulty_add(rows: SamplingRows, row: int, request: NewRequest) -> None:
    if request.seed == PARAMS_SEED:
        raise ZeroDivisionError("injected into the sampler's parameters")
    add_as_before(rows, row, request)


def break_engines(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Those that are built from here on. `patch` is called as `setattr` is."""
    patch(ModelRunner.__init__, "__kwdefaults__", {"sample": faulty_sample})
    patch(sampler, "compute_logprobs", faulty_logprobs)
    patch(prompt_logprobs, "compute_logprobs", faulty_logprobs)
    patch(SamplingRows, "add", faulty_add)


if __name__ == "__main__":
    break_engines()
    main()
