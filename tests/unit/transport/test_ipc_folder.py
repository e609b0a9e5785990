import os
import stat
import tempfile
from pathlib import Path

import pytest

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport import ipc_folder
from roundhouse.transport.address import IpcAddress
from roundhouse.transport.ipc_folder import SWEEP_AFTER_S, IpcFolder, fresh_folder, sweep


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def leftover(parent: Path, name: str = "roundhouse-old", *files: str) -> Path:
    """What a killed frontend leaves."""
    folder = parent / name
    folder.mkdir(mode=0o700)
    for file in files or ("lock", "in.sock", "out.sock"):
        (folder / file).touch()
    return folder


def later(folder: Path) -> float:
    """When `folder` is old enough."""
    return folder.stat().st_mtime + SWEEP_AFTER_S + 1


def test_a_folder_is_private_locked_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    address = IpcAddress(str(tmp_path / "mesh"))
    folder = IpcFolder(address)
    assert stat.S_IMODE((tmp_path / "mesh").stat().st_mode) == 0o700
    with pytest.raises(ConfigError, match="another frontend does"):
        IpcFolder(address)
    folder.close()
    assert names_in(tmp_path) == []


def test_leftovers_are_swept(tmp_path: Path) -> None:
    folder = leftover(tmp_path)
    sweep(str(tmp_path), later(folder))
    assert names_in(tmp_path) == []


def test_what_is_in_use_new_or_not_of_a_frontend_stays(tmp_path: Path) -> None:
    new = leftover(tmp_path, "roundhouse-new")
    sweep(str(tmp_path), new.stat().st_mtime + SWEEP_AFTER_S - 1)
    assert names_in(tmp_path) == ["roundhouse-new"]
    used = IpcFolder(IpcAddress(str(tmp_path / "roundhouse-used")))
    leftover(tmp_path, "another")
    leftover(tmp_path, "roundhouse-no-lock", "in.sock")
    (tmp_path / "roundhouse-link").symlink_to(tmp_path / "another")
    (tmp_path / "roundhouse-file").touch()
    last = leftover(tmp_path, "roundhouse-precious", "lock", "precious")
    sweep(str(tmp_path), later(last))
    used_names = ["another", "roundhouse-file", "roundhouse-link", "roundhouse-no-lock", "roundhouse-precious"]
    assert names_in(tmp_path) == [*used_names, "roundhouse-used"]
    assert names_in(tmp_path / "roundhouse-precious") == ["precious"]
    assert names_in(tmp_path / "another") == ["in.sock", "lock", "out.sock"]
    used.close()


def test_a_parent_that_cannot_be_listed_is_not_swept(tmp_path: Path) -> None:
    sweep(str(tmp_path / "nowhere"), 0.0)


def test_a_fresh_folder_sweeps_its_siblings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = leftover(tmp_path)
    os.utime(old, (1, 1))
    address = fresh_folder()
    assert names_in(tmp_path) == [Path(address.folder).name]


def test_below_a_tmpdir_that_is_too_long_the_folder_is_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(ipc_folder, "SHORT_PARENT", str(tmp_path))
    address = fresh_folder()
    assert (Path(address.folder).parent, names_in(long)) == (tmp_path, [])


def test_without_either_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setattr(ipc_folder, "SHORT_PARENT", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="choose a shorter folder"):
        fresh_folder()
    assert names_in(long) == []
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(ConfigError, match="cannot make a folder for the mesh"):
        fresh_folder()
