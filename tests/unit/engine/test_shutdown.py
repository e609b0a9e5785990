from __future__ import annotations

from itertools import product

import pytest

from roundhouse.engine.shutdown import TABLE, Asked, DeadlinePassed, Shutdown, ShutdownState
from roundhouse.protocol.machine import InvalidTransition, Machine

S = ShutdownState


def test_drains_until_the_deadline() -> None:
    shutdown = Shutdown(grace_s=5.0)
    assert not shutdown.is_overdue(1e9)
    assert shutdown.ask(100.0) is S.DRAINING
    assert not shutdown.is_overdue(104.9)
    assert shutdown.is_overdue(105.0)
    assert shutdown.state is S.ABORTING


def test_a_second_ask_skips_the_deadline() -> None:
    shutdown = Shutdown(grace_s=5.0)
    shutdown.ask(0.0)
    assert shutdown.ask(0.1) is S.ABORTING
    assert shutdown.is_overdue(0.1)
    assert shutdown.ask(0.2) is S.ABORTING


@pytest.mark.parametrize(("state", "event"), list(product(S, (Asked, DeadlinePassed))))
def test_every_pair_is_in_the_table_or_refused(state: S, event: type) -> None:
    machine = Machine("shutdown", TABLE, state)
    if (state, event) in TABLE:
        assert machine.move(event) == (state, TABLE[state, event])
    else:
        with pytest.raises(InvalidTransition):
            machine.move(event)
        assert machine.state is state
