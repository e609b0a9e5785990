"""Tiny tensors: a second thread costs more than it brings, and on a busy machine far more."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
