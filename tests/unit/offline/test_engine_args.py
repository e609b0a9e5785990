"""From a caller's words to an engine's configuration."""

from pathlib import Path

import pytest

from roundhouse.engine.config import EngineConfig
from roundhouse.offline.engine_args import EngineArgs
from roundhouse.protocol.errors import ConfigError
from roundhouse.runner.config import RunnerConfig


def test_defaults() -> None:
    assert EngineArgs(device="cpu").engine_config(Path("/m"), 100) == EngineConfig(
        runner=RunnerConfig(model_path=Path("/m"), device="cpu", max_num_batched_tokens=512, vocab_size=100)
    )


def test_every_argument_has_its_place() -> None:
    args = EngineArgs(
        model="x",
        dtype="float32",
        device="cpu",
        max_model_len=64,
        block_size=8,
        num_kv_blocks=20,
        kv_cache_memory_bytes=1 << 20,
        max_num_seqs=3,
        max_num_batched_tokens=33,
        enable_prefix_caching=False,
        scheduling_policy="priority",
        num_threads=1,
        deterministic=True,
    )
    runner = RunnerConfig(
        model_path=Path("/m"),
        dtype="float32",
        device="cpu",
        block_size=8,
        max_num_seqs=3,
        max_num_batched_tokens=33,
        max_model_len=64,
        vocab_size=100,
        num_threads=1,
        deterministic=True,
    )
    assert args.engine_config(Path("/m"), 100) == EngineConfig(
        runner=runner,
        num_blocks=20,
        kv_cache_bytes=1 << 20,
        enable_prefix_caching=False,
        policy="priority",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"dtype": "int8"},
        {"block_size": 3},
        {"max_num_seqs": 0},
        {"max_num_seqs": "4"},
        {"num_kv_blocks": 0},
        {"kv_cache_memory_bytes": 0},
        {"seed": 1.5},
    ],
)
def test_a_wrong_setting_is_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        EngineArgs(device="cpu", **wrong).engine_config(Path("/m"), 100)
