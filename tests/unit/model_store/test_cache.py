import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from roundhouse.model_store.cache import build_once, default_cache_dir, entry_name, file_key
from roundhouse.model_store.errors import CacheUnusable, ConversionFailed
from roundhouse.model_store.progress import ProgressEvent

Build = Callable[[Path, int], None]


def make(root: Path, build: Build, report: Callable[[ProgressEvent], None] = lambda event: None) -> Path:
    return build_once(root, "m-v1-0", build, is_whole=lambda entry: (entry / "a").exists(), report=report)


def write_a(folder: Path, _lock_fd: int) -> None:
    (folder / "a").write_text("whole")


def entries(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "models").iterdir())


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("ROUNDHOUSE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == Path("/home/ada/.cache/roundhouse")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/roundhouse")
    monkeypatch.setenv("ROUNDHOUSE_CACHE", "~/own")
    assert default_cache_dir() == Path("/home/ada/own")


def test_without_a_home_the_cache_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ROUNDHOUSE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    with pytest.raises(CacheUnusable, match="set ROUNDHOUSE_CACHE to a folder"):
        default_cache_dir()


def test_entry_names_are_safe_and_carry_layout_and_key() -> None:
    assert entry_name("smollm2", "0123456789abcdef0123") == "smollm2-v1-0123456789abcdef"
    assert entry_name("../a b/é*", "0" * 64) == "-a-b----v1-0000000000000000"
    assert entry_name("..", "0" * 64) == "model-v1-0000000000000000"


def test_a_files_key_follows_its_content_and_if_asked_its_time(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"x" * 100)
    two.write_bytes(b"x" * 100)
    os.utime(one, (1, 1))
    os.utime(two, (2, 2))
    assert file_key(one, with_mtime=False) == file_key(two, with_mtime=False)
    assert file_key(one, with_mtime=True) != file_key(two, with_mtime=True)
    two.write_bytes(b"x" * 99 + b"y")
    assert file_key(one, with_mtime=False) != file_key(two, with_mtime=False)


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    builds: list[Path] = []

    def build(folder: Path, lock_fd: int) -> None:
        builds.append(folder)
        write_a(folder, lock_fd)

    assert make(tmp_path, build) == make(tmp_path, build) == tmp_path / "models" / "m-v1-0"
    assert builds == [tmp_path / "models" / f"m-v1-0.partial-{os.getpid()}"]
    assert entries(tmp_path) == [".m-v1-0.lock", "m-v1-0"]


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def build(folder: Path, lock_fd: int) -> None:
        write_a(folder, lock_fd)
        raise ConversionFailed("no")

    with pytest.raises(ConversionFailed):
        make(tmp_path, build)
    assert entries(tmp_path) == [".m-v1-0.lock"]


def test_a_full_disk_is_one_clear_line(tmp_path: Path) -> None:
    def build(folder: Path, lock_fd: int) -> None:
        write_a(folder, lock_fd)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(CacheUnusable) as caught:
        make(tmp_path, build)
    assert caught.value.message == (
        f"the model cache {tmp_path} cannot be written: No space left on device; "
        "set ROUNDHOUSE_CACHE to a folder with room"
    )
    assert entries(tmp_path) == [".m-v1-0.lock"]


def test_a_cache_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheUnusable, match="cannot be written: Not a directory; set ROUNDHOUSE_CACHE"):
        make(tmp_path / "file", write_a)


def test_an_entry_that_lost_a_part_is_built_anew(tmp_path: Path) -> None:
    entry = make(tmp_path, write_a)
    (entry / "a").unlink()
    (entry / "b").touch()
    assert make(tmp_path, write_a) == entry
    assert [path.name for path in entry.iterdir()] == ["a"]


def test_what_killed_builders_left_is_removed(tmp_path: Path) -> None:
    for name in ("m-v1-0.partial-1", "other-v1-0.partial-2"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "a").touch()
    make(tmp_path, write_a)
    assert entries(tmp_path) == [".m-v1-0.lock", ".other-v1-0.lock", "m-v1-0"]


def test_what_a_living_builder_holds_stays_and_others_wait_for_it(tmp_path: Path) -> None:
    started, finish, waiting = threading.Event(), threading.Event(), threading.Event()
    built: list[str] = []
    events: list[ProgressEvent] = []

    def slow(folder: Path, lock_fd: int) -> None:
        started.set()
        assert finish.wait(10)
        built.append("slow")
        write_a(folder, lock_fd)

    def report(event: ProgressEvent) -> None:
        events.append(event)
        waiting.set()

    first = threading.Thread(target=make, args=(tmp_path, slow))
    second = threading.Thread(target=make, args=(tmp_path, lambda *_: built.append("second"), report))
    first.start()
    assert started.wait(10)
    build_once(tmp_path, "n-v1-0", write_a, is_whole=Path.exists, report=report)
    assert (tmp_path / "models" / f"m-v1-0.partial-{os.getpid()}").exists()
    second.start()
    assert waiting.wait(10)
    finish.set()
    first.join(10)
    second.join(10)
    assert built == ["slow"]
    assert events == [ProgressEvent("waiting for another process to prepare m-v1-0")]
