"""Keys come and go while the server runs; what is broken changes nothing."""

import logging
from pathlib import Path

import pytest

from roundhouse.cli import api_key_files
from roundhouse.cli.api_key_files import ApiKeyFiles
from roundhouse.protocol import limits
from roundhouse.protocol.errors import ConfigError
from roundhouse.server.api_keys import key_of

LONG = "a-key-that-is-long-enough"


def names(files: ApiKeyFiles) -> list[str]:
    return [key.name for key in files.ring().keys]


def test_a_folder_as_kubernetes_mounts_a_secret(tmp_path: Path) -> None:
    """`..data` is a link to the folder with the files, and each file a link through it."""
    real = tmp_path / "..2026_11_30"
    real.mkdir()
    for name in ("ann", "bob"):
        (real / name).write_text(f"{LONG}-{name}")
    (tmp_path / "..data").symlink_to(real.name)
    for name in ("ann", "bob"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    assert names(ApiKeyFiles([tmp_path])) == ["ann, line 1", "bob, line 1"]


def test_a_mounted_secret_is_read_of_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first file is of the version that the second one is of, although a kubelet changes it in between."""
    for version in ("..1", "..2"):
        (tmp_path / version).mkdir()
        for name in ("ann", "bob"):
            (tmp_path / version / name).write_text(f"{LONG} {name}{version}")
    (tmp_path / "..data").symlink_to("..1")
    for name in ("ann", "bob"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    read_file = api_key_files._read_file

    def swap_behind(path: Path) -> str:
        text = read_file(path)
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        return text

    monkeypatch.setattr(api_key_files, "_read_file", swap_behind)
    files = ApiKeyFiles([tmp_path])
    assert names(files) == ["ann..1", "bob..1"]
    files.poll()
    assert names(files) == ["ann..2", "bob..2"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "is no text"),
        (b"#" * (limits.MAX_API_KEY_FILE_BYTES + 1), "is too large"),
        (b"sha256:12", "a hash is"),
        (b"# none\n", "1 to 1024 API keys are needed, and 0 are given"),
    ],
)
def test_what_is_no_file_of_keys_is_told_at_the_start(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        ApiKeyFiles([file])


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        ApiKeyFiles([tmp_path / "none"])


def test_new_keys_are_adopted_and_told_by_name(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(LONG)
    files = ApiKeyFiles([file])
    with caplog.at_level(logging.INFO):
        files.poll()
        file.write_text(f"{LONG}2 bob")
        files.poll()
    assert names(files) == ["bob"]
    assert [record.getMessage() for record in caplog.records] == ["1 API keys from here on: bob"]


def test_a_complaint_is_told_once_and_again_after_a_good_reading(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    file.write_text(LONG)
    files = ApiKeyFiles([file])
    before = files.ring()
    for text in ("a b c", "a b c", LONG, "a b c"):
        file.write_text(text)
        files.poll()
    assert files.ring() is before
    said = "the API keys stay as they are: keys, line 1: a line is a key, or a key, a blank and a name"
    assert [record.getMessage() for record in caplog.records] == [said] * 2


def test_what_nobody_thought_of_ends_no_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no key could be revoked from there on."""
    file = tmp_path / "keys"
    file.write_text(LONG)
    files = ApiKeyFiles([file])
    with monkeypatch.context() as broken:
        broken.setattr(Path, "is_dir", lambda _: 1 // 0)
        files.poll()
    file.write_text(f"{LONG}2 bob")
    files.poll()
    assert names(files) == ["bob"]


def test_a_short_key_is_warned_of_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    ApiKeyFiles([], [key_of("secret", name="ROUNDHOUSE_API_KEY")])
    assert [record.getMessage() for record in caplog.records] == [
        "the API key ROUNDHOUSE_API_KEY is short enough to be guessed; `roundhouse api-key` makes one"
    ]
