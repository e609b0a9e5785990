from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench.errors import BenchError
from tests.bench.peer_install import install_once, run_step, stamp_of


class Fills:
    """Fills a folder with a file that counts the fills; fails on those whose number is in `fails`."""

    def __init__(self, fails: frozenset[int] = frozenset()) -> None:
        self.count = 0
        self._fails = fails

    def __call__(self, folder: Path) -> None:
        self.count += 1
        (folder / f"fill-{self.count}").touch()
        if self.count in self._fails:
            raise BenchError("broke off")


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_fills_once(tmp_path: Path) -> None:
    fill = Fills()
    folders = [install_once(tmp_path / "peers" / "one", "a==1", fill) for _ in range(2)]
    assert folders == [tmp_path / "peers" / "one"] * 2
    assert names(folders[0]) == {"fill-1", "installed.stamp"}


def test_fills_an_empty_folder_again_when_the_contents_change(tmp_path: Path) -> None:
    fill = Fills()
    install_once(tmp_path / "one", "a==1", fill)
    folder = install_once(tmp_path / "one", "a==2", fill)
    assert names(folder) == {"fill-2", "installed.stamp"}


def test_starts_over_after_a_fill_that_broke_off(tmp_path: Path) -> None:
    fill = Fills(fails=frozenset({1}))
    with pytest.raises(BenchError, match="broke off"):
        install_once(tmp_path / "one", "a==1", fill)
    assert names(tmp_path / "one") == {"fill-1"}
    assert names(install_once(tmp_path / "one", "a==1", fill)) == {"fill-2", "installed.stamp"}


def test_a_change_that_broke_off_leaves_nothing_that_counts_as_installed(tmp_path: Path) -> None:
    fill = Fills(fails=frozenset({2}))
    install_once(tmp_path / "one", "a==1", fill)
    with pytest.raises(BenchError, match="broke off"):
        install_once(tmp_path / "one", "a==2", fill)
    assert names(install_once(tmp_path / "one", "a==1", fill)) == {"fill-3", "installed.stamp"}


def test_a_folder_that_was_moved_is_filled_again(tmp_path: Path) -> None:
    fill = Fills()
    install_once(tmp_path / "one", "a==1", fill).rename(tmp_path / "two")
    assert names(install_once(tmp_path / "two", "a==1", fill)) == {"fill-2", "installed.stamp"}


def test_stamp_names_the_folder_and_depends_on_the_contents() -> None:
    one, two = stamp_of(Path("/b/x"), "a==1"), stamp_of(Path("/b/x"), "a==2")
    assert one.splitlines()[0] == two.splitlines()[0] == "/b/x"
    assert one != two


def test_step_that_fails_tells_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False, raising=False)
    with pytest.raises(BenchError) as caught:
        run_step(tmp_path, ["/bin/sh", "-c", "echo first; echo no room >&2; exit 3"])
    assert str(caught.value) == f"sh failed with exit code 3 in {tmp_path}: first | no room"
