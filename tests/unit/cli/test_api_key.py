"""A key that is made is one that its hash line lets in."""

import pytest
from click.testing import CliRunner

from roundhouse.cli.api_key import new_key_lines
from roundhouse.cli.main import cli
from roundhouse.protocol.errors import ConfigError
from roundhouse.server.api_keys import KeyRing, parse_keys


def test_the_line_lets_the_key_in_and_no_other() -> None:
    key, line = new_key_lines("ann")
    ring = KeyRing(parse_keys(line, source="keys"))
    found = ring.find(key.encode())
    assert found is not None
    assert (found.name, len(key) > 40, key in line) == ("ann", True, False)
    assert ring.find(new_key_lines("ann")[0].encode()) is None


@pytest.mark.parametrize("name", ["", "a b", "#", "ä", "x" * 65])
def test_a_name_that_no_file_may_hold(name: str) -> None:
    with pytest.raises(ConfigError, match="--name"):
        new_key_lines(name)


def test_the_key_is_apart_from_the_line_that_goes_to_a_file() -> None:
    result = CliRunner().invoke(cli, ["api-key", "--name", "ann"])
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    (key,) = [text.strip() for text in result.stderr.splitlines() if text.strip().startswith("rh-")]
    assert KeyRing(parse_keys(line, source="keys")).find(key.encode()) is not None
