"""A `ModelRunner` over a tiled model, with the driver of any other runner."""

from __future__ import annotations

from pathlib import Path

from roundhouse.models.causal_lm import CausalLM
from roundhouse.models.tiled_lm import TiledCausalLM
from roundhouse.runner.attention_tiled import TiledBackend, TileShapes
from roundhouse.runner.config import RunnerConfig
from roundhouse.runner.kv_store import KVStore
from roundhouse.runner.model_runner import ModelRunner
from roundhouse.runner.tile_probe import QUICK
from tests.support.runner_driver import RunnerDriver


def make_tiled_runner(
    model: CausalLM,
    *,
    shapes: TileShapes = QUICK,
    num_blocks: int = 1024,
    block_size: int = 4,
    max_num_seqs: int = 48,
) -> RunnerDriver:
    store = KVStore(model.layers, num_blocks=num_blocks, block_size=block_size, dtype=model.dtype, device=model.device)
    runner = ModelRunner(
        TiledCausalLM(model, heights=shapes.heights),
        TiledBackend(store, shapes=shapes),
        store,
        RunnerConfig(Path("unused"), block_size=block_size, max_num_seqs=max_num_seqs),
        max_model_len=model.max_model_len,
    )
    return RunnerDriver(runner, block_size=block_size, num_blocks=num_blocks)
