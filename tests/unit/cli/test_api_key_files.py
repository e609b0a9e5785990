"""Keys come and go while the server runs; what is broken changes nothing."""

import logging
from pathlib import Path

import pytest

from roundhouse.cli.api_key_files import ApiKeyFiles, read_keys
from roundhouse.protocol import limits
from roundhouse.protocol.errors import ConfigError
from roundhouse.server.api_keys import KeyRing, key_of

LONG = "a-key-that-is-long-enough"


def names(path: Path) -> list[str]:
    return [key.name for key in read_keys(path)]


def test_a_folder_as_kubernetes_mounts_a_secret(tmp_path: Path) -> None:
    """`..data` is a link to the folder with the files, and each file a link through it."""
    real = tmp_path / "..2026_11_30"
    real.mkdir()
    for name in ("ann", "bob"):
        (real / name).write_text(f"{LONG}-{name}")
    (tmp_path / "..data").symlink_to(real.name)
    for name in ("ann", "bob"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    assert names(tmp_path) == ["ann, line 1", "bob, line 1"]


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
        read_keys(tmp_path / "none")


def test_new_keys_are_adopted_and_told_by_name(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(LONG)
    files = ApiKeyFiles([file])
    ring = KeyRing([key_of(LONG + "2", name="bob")])
    with caplog.at_level(logging.INFO):
        files.adopt(files.ring())
        files.adopt(ring)
    assert files.ring() is ring
    assert [record.getMessage() for record in caplog.records] == ["1 API keys from here on: bob"]


def test_a_complaint_is_told_once_and_again_after_a_good_reading(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(LONG)
    files = ApiKeyFiles([tmp_path / "keys"])
    before = files.ring()
    for _ in range(2):
        files.complain("why")
    files.adopt(before)
    files.complain("why")
    assert files.ring() is before
    assert [record.getMessage() for record in caplog.records] == ["the API keys stay as they are: why"] * 2


def test_a_short_key_is_warned_of_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    ApiKeyFiles([], [key_of("secret", name="ROUNDHOUSE_API_KEY")])
    assert [record.getMessage() for record in caplog.records] == [
        "the API key ROUNDHOUSE_API_KEY is short enough to be guessed; `roundhouse api-key` makes one"
    ]
