from __future__ import annotations

from roundhouse.engine.memory import kv_budget_bytes

GIB = 2**30


def test_cpu_takes_a_modest_share_for_all_engines_of_the_machine() -> None:
    assert kv_budget_bytes(available_bytes=8 * GIB, on_cuda=False) == 2 * GIB
    assert kv_budget_bytes(available_bytes=8 * GIB, on_cuda=False, engines_on_machine=4) == GIB // 2
    assert kv_budget_bytes(available_bytes=512 * GIB, on_cuda=False) == 4 * GIB


def test_cuda_takes_most_of_what_the_model_left() -> None:
    assert kv_budget_bytes(available_bytes=100 * GIB, on_cuda=True) == 90 * GIB
