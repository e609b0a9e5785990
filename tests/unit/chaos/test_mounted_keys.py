from pathlib import Path

import pytest

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.key_folder import read_key_files
from roundhouse.transport.keys import FrontendKeys, parse_engine_keys, parse_frontend_keys
from tests.chaos.mounted_keys import LONGEST_DELAY_S, MountedKeys
from tests.chaos.plan import Event, Kind


@pytest.fixture
def keys(tmp_path: Path) -> MountedKeys:
    return MountedKeys(tmp_path, frontends=["frontend-0", "frontend-1"], engines=["e-0", "e-1"], seed=0)


def event(kind: Kind, *, frontend: int | None = None) -> Event:
    return Event(0.0, kind, None, frontend, 0.0)


def at_frontend(keys: MountedKeys, index: int = 0) -> FrontendKeys:
    return parse_frontend_keys(read_key_files(keys.frontend(index)))


def generations(keys: MountedKeys) -> list[list[int]]:
    """At the frontends, then at the engines."""
    return [
        *(list(at_frontend(keys, index).servers) for index in range(2)),
        *(list(parse_engine_keys(read_key_files(keys.engine(name))).servers) for name in ("e-0", "e-1")),
    ]


def allowed(keys: MountedKeys, index: int = 0) -> list[str]:
    return [grant.identity for grant in at_frontend(keys, index).grants.values()]


def test_a_rotation_reaches_everybody_at_moments_of_their_own(keys: MountedKeys) -> None:
    assert generations(keys) == [[1]] * 4
    keys.begin(event(Kind.ROTATE_SERVER), None, 10.0)
    keys.tick(10.0)
    assert generations(keys) == [[1]] * 4
    seen = []
    for tenths in range(int(LONGEST_DELAY_S * 10) + 1):
        keys.tick(10.0 + tenths / 10)
        seen.append(sum(numbers == [1, 2] for numbers in generations(keys)))
    assert seen == sorted(seen)
    assert set(seen) >= {0, 1, 3, 4}
    keys.begin(event(Kind.RETIRE_SERVER), None, 20.0)
    keys.tick(20.0 + LONGEST_DELAY_S)
    assert generations(keys) == [[2]] * 4


def test_an_engines_key_is_rotated_and_retired(keys: MountedKeys) -> None:
    keys.begin(event(Kind.ROTATE_ENGINE), "e-1", 0.0)
    keys.tick(LONGEST_DELAY_S)
    assert allowed(keys) == ["e-0", "e-1", "e-1"]
    keys.begin(event(Kind.RETIRE_ENGINE), "e-1", 10.0)
    keys.tick(10.0 + LONGEST_DELAY_S)
    assert allowed(keys) == ["e-0", "e-1"]


def test_a_revoked_engine_keeps_its_key_until_it_gets_another(keys: MountedKeys) -> None:
    before = read_key_files(keys.engine("e-0"))
    keys.begin(event(Kind.REVOKE), "e-0", 0.0)
    keys.tick(LONGEST_DELAY_S)
    assert (keys.is_allowed("e-0"), keys.is_allowed("e-1"), allowed(keys)) == (False, True, ["e-1"])
    assert read_key_files(keys.engine("e-0")) == before
    keys.end(event(Kind.REVOKE), "e-0", 10.0)
    keys.tick(10.0 + LONGEST_DELAY_S)
    assert (keys.is_allowed("e-0"), allowed(keys)) == (True, ["e-1", "e-0"])
    assert read_key_files(keys.engine("e-0")) != before


def test_a_broken_list_stays_broken_until_its_end_whatever_else_changes(keys: MountedKeys) -> None:
    keys.begin(event(Kind.BROKEN_LIST, frontend=1), None, 0.0)
    keys.begin(event(Kind.ROTATE_ENGINE), "e-0", 0.0)
    keys.tick(LONGEST_DELAY_S)
    assert allowed(keys, 0) == ["e-0", "e-0", "e-1"]
    with pytest.raises(ConfigError, match="Input data was truncated"):
        allowed(keys, 1)
    keys.end(event(Kind.BROKEN_LIST, frontend=1), None, 5.0)
    assert allowed(keys, 1) == ["e-0", "e-0", "e-1"]


def test_whole_again_at_once(keys: MountedKeys) -> None:
    keys.begin(event(Kind.BROKEN_LIST, frontend=0), None, 0.0)
    keys.begin(event(Kind.ROTATE_SERVER), None, 0.0)
    keys.make_whole()
    assert generations(keys) == [[1, 2]] * 4
