from pathlib import Path
from typing import Any

import pytest

from roundhouse.protocol.errors import ConfigError
from roundhouse.runner.config import RunnerConfig


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dtype": "int8"}, "dtype must be one of auto, float32, bfloat16, float16, got int8"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda, got tpu"),
        ({"block_size": 12}, "block_size must be a power of two, got 12"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"deterministic": True, "device": "cuda"}, "deterministic execution is for the CPU, and the device is cuda"),
        (
            {"deterministic": True, "dtype": "float16"},
            "deterministic execution computes in float32 or bfloat16, not in float16",
        ),
        ({"max_model_len": -5}, "max_model_len must be at least 1, got -5"),
    ],
)
def test_a_wrong_setting_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        RunnerConfig(Path("model"), **setting)
    assert error.value.message == message


def test_the_defaults_are_right_settings() -> None:
    assert RunnerConfig(Path("model")).max_model_len is None
