"""How a key folder is read, and read again: modes, a mounted Secret's link, and what is broken for a while."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.key_folder import KeyFolder, KeyWatch, read_key_files


def parse(files: Mapping[str, str]) -> int:
    try:
        return json.loads(files["allowed.json"])
    except ValueError:
        raise ConfigError("allowed.json: broken") from None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "allowed.json").write_text("1")
    return tmp_path


def test_only_what_means_something_is_read(folder: Path) -> None:
    (folder / "notes.txt").write_bytes(b"\xff")
    (folder / ".allowed.json.tmp").write_text("2")
    assert read_key_files(folder) == {"allowed.json": "1"}


@pytest.mark.parametrize(("mode", "is_good"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False)])
def test_a_secret_key_is_its_owners(folder: Path, mode: int, is_good: bool) -> None:
    key = folder / "client.key"
    key.write_text("k")
    key.chmod(mode)
    if is_good:
        assert read_key_files(folder)["client.key"] == "k"
        return
    with pytest.raises(ConfigError) as raised:
        read_key_files(folder)
    assert raised.value.message == f"{key}: a secret key that others may read (mode {mode:04o}); chmod 600"


def mount(folder: Path, version: str, text: str) -> None:
    """As a kubelet does: the files of one version in a folder, a link to it, and a link for each file."""
    (folder / version).mkdir()
    for name in ("allowed.json", "client.key"):
        (folder / version / name).write_text(text)
        (folder / version / name).chmod(0o640)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data_tmp").symlink_to(version)
    (folder / "..data_tmp").rename(folder / "..data")


def test_a_mounted_secret_is_read_by_its_link_and_its_modes_are_the_volumes(tmp_path: Path) -> None:
    mount(tmp_path, "..2026_01", "1")
    keys = KeyFolder(tmp_path, parse)
    assert (keys.keys, keys.poll()) == (1, None)
    mount(tmp_path, "..2026_02", "2")
    assert (keys.poll(), keys.poll(), keys.keys) == (2, None, 2)


def test_a_version_that_is_removed_while_it_is_read_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet swaps the link, then removes what was behind it."""
    mount(tmp_path, "..2026_01", "1")
    keys = KeyFolder(tmp_path, parse)
    listdir = os.listdir

    def listed(version: Path) -> list[str]:
        names = listdir(version)
        if version.name == "..2026_01":
            mount(tmp_path, "..2026_02", "2")
            shutil.rmtree(version)
        return names

    monkeypatch.setattr(os, "listdir", listed)
    assert (keys.poll(), keys.num_failures) == (2, 0)


def test_a_link_that_leads_round_in_a_circle_is_a_failure_and_no_more(tmp_path: Path) -> None:
    mount(tmp_path, "..2026_01", "1")
    keys = KeyFolder(tmp_path, parse)
    (tmp_path / "..data").unlink()
    (tmp_path / "..data").symlink_to("..data")
    assert (keys.poll(), keys.num_failures) == (None, 1)
    with pytest.raises(ConfigError, match="Too many levels of symbolic links"):
        read_key_files(tmp_path)
    (tmp_path / "..data").unlink()
    mount(tmp_path, "..2026_02", "2")
    assert (keys.poll(), keys.num_failures) == (2, 1)


def test_what_is_broken_leaves_the_last_good_version_and_is_told_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeyFolder(folder, parse)
    for text, expected, failures in [("{", None, 1), ("{", None, 1), ("2", 2, 1), ("[", None, 2), ("2", None, 2)]:
        (folder / "allowed.json").write_text(text)
        assert (keys.poll(), keys.num_failures) == (expected, failures)
    assert keys.keys == 2
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    said = f"the keys stay as they are: {folder}: allowed.json: broken"
    assert told == [said] * 2


def test_a_folder_that_goes_away_is_a_failure_too(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    (folder / "allowed.json").write_text("1")
    keys = KeyFolder(folder, parse)
    (folder / "allowed.json").unlink()
    folder.rmdir()
    assert (keys.poll(), keys.num_failures, keys.keys) == (None, 1, 1)


def test_a_folder_that_is_not_good_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        KeyFolder(tmp_path / "nowhere", parse)
    assert raised.value.message == f"{tmp_path}/nowhere: No such file or directory"
    (tmp_path / "allowed.json").write_text("{")
    with pytest.raises(ConfigError) as raised:
        KeyFolder(tmp_path, parse)
    assert raised.value.message == f"{tmp_path}: allowed.json: broken"


@pytest.mark.parametrize(("raw", "message"), [(b"\xff", "not UTF-8"), (b"x" * (2**22 + 1), "over 4194304 bytes")])
def test_what_is_no_text_of_ours(folder: Path, raw: bytes, message: str) -> None:
    (folder / "allowed.json").write_bytes(raw)
    with pytest.raises(ConfigError) as raised:
        read_key_files(folder)
    assert raised.value.message == f"{folder}/allowed.json: {message}"


def test_the_watch_posts_each_new_version(folder: Path) -> None:
    posted: list[int] = []

    def post(keys: int) -> None:
        posted.append(keys)
        watch.stop()

    watch = KeyWatch(KeyFolder(folder, parse), post, interval_s=0.001)
    (folder / "allowed.json").write_text("2")
    watch.start()
    watch._thread.join(10)
    assert posted == [2]


def test_the_watch_outlives_what_its_receiver_raises_and_brings_that_version_again(folder: Path) -> None:
    """A version that nobody took may be the one that revokes a key."""
    posted: list[int] = []

    def post(keys: int) -> None:
        posted.append(keys)
        if len(posted) < 3:
            raise RuntimeError("not now")
        watch.stop()

    keys = KeyFolder(folder, parse)
    watch = KeyWatch(keys, post, interval_s=0.001)
    (folder / "allowed.json").write_text("2")
    watch.start()
    watch._thread.join(10)
    assert (posted, keys.num_failures, keys.keys) == ([2, 2, 2], 1, 2)
