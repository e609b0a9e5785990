import pytest

from roundhouse.server.state import Health, health_of


@pytest.mark.parametrize(
    ("is_errored", "num_admitted", "engines_can_come", "expected"),
    [
        (False, 1, False, Health.OK),
        (False, 1, True, Health.OK),
        (False, 0, False, Health.DOWN),
        (False, 0, True, Health.ASLEEP),
        (True, 1, True, Health.DOWN),
        (True, 0, True, Health.DOWN),
    ],
)
def test_health(is_errored: bool, num_admitted: int, engines_can_come: bool, expected: Health) -> None:
    health = health_of(is_errored=is_errored, num_admitted=num_admitted, engines_can_come=engines_can_come)
    assert health is expected
