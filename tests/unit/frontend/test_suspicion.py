"""Which losses speak against a request, and when there are enough of them."""

from __future__ import annotations

import pytest

from roundhouse.frontend.loss import DEADLY, LossCause
from roundhouse.frontend.suspicion import MAX_DEATHS, MAX_LOSSES, FruitlessLoss, Suspicion
from tests.support.mesh import hello


def suspected(*causes: LossCause) -> Suspicion:
    """After losses of engine-0, engine-1, …"""
    suspicion = Suspicion()
    for number, cause in enumerate(causes):
        suspicion.on_loss(hello(f"engine-{number}"), cause)
    return suspicion


def judged(suspicion: Suspicion) -> tuple[int, int, bool, bool]:
    """(losses, known deaths, is_suspect, is_poisoned)."""
    deaths = sum(loss.is_death for loss in suspicion.losses)
    return len(suspicion.losses), deaths, suspicion.is_suspect, suspicion.is_poisoned


def test_engines_that_said_they_died_are_enough_at_three() -> None:
    found = [judged(suspected(*[LossCause.DIED] * count)) for count in range(1, MAX_DEATHS + 1)]
    assert found == [(1, 1, False, False), (2, 2, True, False), (3, 3, True, True)]


@pytest.mark.parametrize("cause", sorted(DEADLY - {LossCause.DIED}))
def test_engines_of_which_nothing_is_known_are_enough_at_six(cause: LossCause) -> None:
    found = [judged(suspected(*[cause] * count))[2:] for count in range(1, MAX_LOSSES + 1)]
    assert found == [(False, False), (True, False), (True, False), (True, False), (True, False), (True, True)]


def test_an_engine_that_comes_back_in_the_same_life_never_died() -> None:
    suspicion = suspected(*[LossCause.UNREACHABLE] * 3)
    suspicion.on_seen(hello("engine-1"))
    assert suspicion.losses == [FruitlessLoss(f"engine-{number}", (1, 1), is_death=False) for number in (0, 2)]


def test_a_later_life_shows_that_the_one_before_ended() -> None:
    suspicion = suspected(*[LossCause.UNREACHABLE] * 3)
    for number in range(3):
        assert not suspicion.is_poisoned
        suspicion.on_seen(hello(f"engine-{number}", epoch=(1, 2)))
    assert judged(suspicion) == (3, 3, True, True)


def test_an_engine_that_died_is_not_brought_back_by_another_and_strangers_tell_nothing() -> None:
    suspicion = suspected(LossCause.DIED, LossCause.UNREACHABLE)
    before = list(suspicion.losses)
    suspicion.on_seen(hello("engine-7"))
    suspicion.on_seen(hello("engine-1", epoch=(1, 0)))
    assert suspicion.losses == before
    suspicion.on_seen(hello("engine-0", epoch=(1, 2)))
    assert suspicion.losses == before


def test_one_life_that_is_lost_again_and_again_is_struck_out_whole() -> None:
    suspicion = Suspicion()
    for _ in range(MAX_LOSSES - 1):
        suspicion.on_loss(hello(), LossCause.UNREACHABLE)
    suspicion.on_seen(hello())
    assert suspicion.losses == []


def test_a_lost_frame_speaks_neither_for_nor_against() -> None:
    suspicion = suspected(LossCause.GAP, LossCause.DIED, LossCause.GAP, LossCause.DIED, LossCause.GAP)
    assert judged(suspicion) == (2, 2, True, False)


@pytest.mark.parametrize("cause", sorted(set(LossCause) - DEADLY - {LossCause.GAP}))
def test_what_is_not_its_doing_clears_it(cause: LossCause) -> None:
    assert suspected(LossCause.DIED, LossCause.DIED, cause).losses == []


def test_a_token_clears_it() -> None:
    suspicion = suspected(LossCause.DIED, LossCause.UNREACHABLE)
    suspicion.on_token()
    assert suspicion.losses == []
