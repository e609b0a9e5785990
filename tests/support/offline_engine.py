"""An `LLMEngine` over the scripted runner: the real scheduler and processors, a made-up model, a small vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roundhouse.engine.core import EngineCore
from roundhouse.offline.inproc_client import InprocClient
from roundhouse.offline.llm_engine import LLMEngine
from tests.support.builders import scheduler
from tests.support.engine_parts import ScriptedExecutor
from tests.support.scripted_runner import ScriptedRunner
from tests.support.small_tokenizers import byte_level

TOKENIZER = byte_level()


class OfflineEngine:
    """The engine with its parts in reach; unseeded requests get the seeds 1, 2, 3 …"""

    def __init__(self, *, script: dict[str, Any] | None = None, fail: dict[str, str] | None = None, **config: Any):
        self.executor = ScriptedExecutor()
        # The core knows requests of its only client by these ids.
        self.executor.runner = ScriptedRunner(
            vocab_size=TOKENIZER.vocab_size, script=_of_client(script), fail=_of_client(fail)
        )
        self.core = EngineCore(scheduler(**config), self.executor, vocab_size=TOKENIZER.vocab_size, clock=lambda: 100.0)
        self._seeds: Iterator[int] = iter(range(1, 1000))
        self.engine = LLMEngine(
            TOKENIZER,
            InprocClient(self.core),
            max_model_len=64,
            random_bits=lambda count: next(self._seeds),
            monotonic=lambda: 100.0,
            wall=lambda: 0.0,
        )

    def assert_empty(self) -> None:
        """Nothing of any request is left, anywhere."""
        stats = self.core.stats()
        assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage) == (0, 0, 0.0)
        assert not self.engine.has_unfinished_requests()
        processor = self.engine._output_processor
        assert (processor.request_states, processor.parents, processor.reservations) == ({}, {}, {})


def _of_client(by_request_id: dict[str, Any] | None) -> dict[str, Any]:
    return {f"0:{request_id}": value for request_id, value in (by_request_id or {}).items()}
