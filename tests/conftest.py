"""What every tier may use. A fixture that one tier alone needs lives in that tier's conftest."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import free_ports

# No test reaches a model hub: set before the hub's library is imported, which reads it once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A time limit per example is flaky on a busy machine, and pytest-timeout bounds the test; CI must not be a lottery.
settings.register_profile("roundhouse", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("roundhouse")


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The embedded default model as a folder of safetensors; converted at first use, then found in the cache."""
    from roundhouse.model_store import resolve_model

    return resolve_model("smollm2").path


@pytest.fixture
def free_tcp_port() -> int:
    """A port on the loopback address that was free a moment ago; bind it soon."""
    return free_ports.free_tcp_port()
