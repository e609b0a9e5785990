from __future__ import annotations

from typing import Any

import pytest

from roundhouse.kvcache.config import CacheConfig
from roundhouse.protocol.errors import ConfigError


def test_defaults() -> None:
    config = CacheConfig(num_blocks=2)
    assert (config.block_size, config.enable_prefix_caching) == (16, True)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"num_blocks": 1}, "num_blocks must be at least 2"), ({"num_blocks": 9, "block_size": 0}, "block_size must be")],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        CacheConfig(**wrong)
