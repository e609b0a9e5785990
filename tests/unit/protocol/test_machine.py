from enum import Enum

import pytest

from roundhouse.protocol.machine import STORY_LENGTH, InvalidTransition, Machine


class Light(Enum):
    RED = 1
    GREEN = 2


class Switch:
    pass


class Break:
    pass


TABLE: dict[tuple[Light, type], Light] = {(Light.RED, Switch): Light.GREEN, (Light.GREEN, Switch): Light.RED}


def test_a_move_returns_where_it_came_from_and_where_it_went() -> None:
    machine = Machine("light", TABLE, Light.RED)
    assert machine.move(Switch) == (Light.RED, Light.GREEN)
    assert machine.state is Light.GREEN
    assert machine.story == ("Switch: RED to GREEN",)


def test_a_pair_outside_the_table_tells_the_story_and_changes_nothing() -> None:
    machine = Machine("light", TABLE, Light.RED)
    machine.move(Switch)
    assert machine.allows(Switch)
    assert not machine.allows(Break)
    with pytest.raises(InvalidTransition) as caught:
        machine.move(Break)
    assert str(caught.value) == "light: Break in state GREEN; story: Switch: RED to GREEN"
    assert machine.state is Light.GREEN


def test_the_story_is_bounded() -> None:
    machine = Machine("light", TABLE, Light.RED)
    for _ in range(STORY_LENGTH + 5):
        machine.move(Switch)
    assert len(machine.story) == STORY_LENGTH
