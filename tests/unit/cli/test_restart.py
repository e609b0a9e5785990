from __future__ import annotations

import pytest

from roundhouse.cli.restart import GiveUp, RestartPolicy, StartAgain


@pytest.mark.parametrize(("exit_code", "said"), [(2, 2), (1, 1), (0, 1), (-9, 1)])
def test_before_any_engine_served_the_command_gives_up(exit_code: int, said: int) -> None:
    assert RestartPolicy().on_exit(exit_code, 1.0, was_serving=False) == GiveUp(said)


def test_a_killed_engine_starts_again_at_once_then_later_and_later() -> None:
    policy = RestartPolicy()
    delays = [policy.on_exit(-9, 0.5, was_serving=True) for _ in range(8)]
    assert delays == [StartAgain(s) for s in (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0)]


def test_a_healthy_life_forgets_the_failures_before_it() -> None:
    policy = RestartPolicy(failures=5)
    assert policy.on_exit(1, 61.0, was_serving=True) == StartAgain(0.0)
    assert policy.on_exit(1, 0.1, was_serving=True) == StartAgain(1.0)
