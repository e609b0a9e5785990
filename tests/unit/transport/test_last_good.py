"""A value made of files that change: what is broken changes nothing, and ends nobody who polls."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.last_good import LastGood, read_version


class Files:
    """`texts` is what a read returns, or raises."""

    def __init__(self) -> None:
        self.texts: dict[str, str] | Exception = {"a": "1"}
        self.num_parsed = 0

    def read(self) -> Mapping[str, str]:
        if isinstance(self.texts, Exception):
            raise self.texts
        return self.texts

    def parse(self, texts: Mapping[str, str]) -> int:
        self.num_parsed += 1
        return int(texts["a"])


def test_any_failure_leaves_the_last_good_value_and_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    files = Files()
    last_good = LastGood(files.read, files.parse, what="the keys")
    seen: list[tuple[int | None, int, int]] = []
    broken = [ConfigError("no"), RuntimeError("a loop"), {"a": "no number"}, {}]
    for texts in (*broken, {"a": "2"}, RuntimeError("a loop")):
        files.texts = texts
        seen += [(last_good.poll(), last_good.num_failures, last_good.value) for _ in range(2)]
    assert seen == [
        *[(None, number, 1) for number in (1, 2, 3, 4) for _ in range(2)],
        (2, 4, 2),
        (None, 4, 2),
        *[(None, 5, 2)] * 2,
    ]
    told = [(record.getMessage(), bool(record.exc_info)) for record in caplog.records]
    assert told[:2] == [
        ("the keys stay as they are: no", False),
        ("the keys stay as they are: RuntimeError('a loop')", True),
    ]
    assert len(told) == 5


def test_what_did_not_change_is_not_parsed_again() -> None:
    files = Files()
    last_good = LastGood(files.read, files.parse, what="the keys")
    assert ([last_good.poll() for _ in range(3)], files.num_parsed) == ([None] * 3, 1)


def test_a_version_is_in_force_when_it_was_adopted() -> None:
    files, adopted = Files(), list[int]()
    last_good = LastGood(files.read, files.parse, what="the keys")

    def refuse(value: int) -> None:
        raise RuntimeError("not now")

    files.texts = {"a": "2"}
    assert (last_good.poll(refuse), last_good.value) == (None, 1)
    assert (last_good.poll(adopted.append), last_good.value, adopted) == (2, 2, [2])


def test_a_folder_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    def publish(version: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / "..new").symlink_to(version)
        (tmp_path / "..new").rename(tmp_path / "..data")

    publish("..1")
    seen: list[str] = []

    def read(version: Path) -> str:
        seen.append(version.name)
        if version.name == "..1":
            publish("..2")
            raise FileNotFoundError(2, "No such file or directory")
        return version.name

    assert (read_version(tmp_path, read), seen) == ("..2", ["..1", "..2"])
    with pytest.raises(ConfigError, match="No such file or directory"):
        read_version(tmp_path, lambda version: (version / "none").read_text())
