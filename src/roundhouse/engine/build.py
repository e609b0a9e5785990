"""`EngineConfig` → a loaded, warm `EngineCore`: the order in which an engine comes up, served or offline."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from roundhouse.clock import Clock, monotonic
from roundhouse.engine.config import EngineConfig
from roundhouse.engine.core import EngineCore
from roundhouse.engine.executor import UniProcExecutor
from roundhouse.engine.memory import kv_budget_bytes
from roundhouse.kvcache.config import CacheConfig
from roundhouse.kvcache.sizing import num_blocks_for_budget, num_blocks_for_sequence
from roundhouse.runner.memory import read_available_bytes
from roundhouse.runner.worker import Worker
from roundhouse.scheduler.config import SchedulerConfig
from roundhouse.scheduler.scheduler import Scheduler

logger = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""(tensors loaded, tensors in all)."""


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """A core that is ready to step, and what its Hello tells of it. num_blocks counts the null block."""

    core: EngineCore
    max_model_len: int
    num_blocks: int
    dtype: str
    kernel_path: str


def build_engine(
    config: EngineConfig, *, on_progress: OnProgress | None = None, clock: Clock = monotonic
) -> BuiltEngine:
    """Loads the model, sizes and allocates the KV cache, and runs one step to warm up.

    Raises `ModelError` or `ConfigError` when the model or a setting is wrong.
    """
    worker = Worker(config.runner)
    worker.load_model(on_progress)
    num_blocks = _num_blocks(config, worker)
    worker.initialize_kv(num_blocks)
    worker.warm_up()
    scheduler = Scheduler(
        SchedulerConfig(
            max_model_len=worker.max_model_len,
            max_num_seqs=config.runner.max_num_seqs,
            max_num_batched_tokens=config.runner.max_num_batched_tokens,
            policy=config.policy,
        ),
        CacheConfig(
            num_blocks=num_blocks,
            block_size=config.runner.block_size,
            enable_prefix_caching=config.enable_prefix_caching,
        ),
    )
    core = EngineCore(scheduler, UniProcExecutor(worker), vocab_size=worker.vocab_size, clock=clock)
    return BuiltEngine(core, worker.max_model_len, num_blocks, worker.dtype_name, worker.kernel_path)


def _num_blocks(config: EngineConfig, worker: Worker) -> int:
    """The given number, or what the memory holds, and never more than `max_num_seqs` full contexts can use."""
    facts = worker.kv_facts
    enough = num_blocks_for_sequence(worker.max_model_len * config.runner.max_num_seqs, facts.block_size)
    if config.num_blocks is not None:
        num_blocks = min(config.num_blocks, enough)
    else:
        budget = config.kv_cache_bytes
        if budget is None:
            budget = kv_budget_bytes(
                available_bytes=read_available_bytes(worker.device),
                on_cuda=worker.device.type == "cuda",
                engines_on_machine=config.engines_on_machine,
            )
        num_blocks = num_blocks_for_budget(
            facts.bytes_per_block,
            block_size=facts.block_size,
            memory_bytes=min(budget, enough * facts.bytes_per_block),
            max_model_len=worker.max_model_len,
        )
    logger.info(
        "KV cache: %d blocks of %d tokens, %.0f MiB",
        num_blocks,
        facts.block_size,
        num_blocks * facts.bytes_per_block / 2**20,
    )
    return num_blocks
