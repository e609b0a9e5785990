import os
import shutil
from pathlib import Path

import pytest

from roundhouse.cli.key_store import KeyStore
from roundhouse.transport.key_folder import read_key_files
from tests.chaos.secret_mount import SecretMount


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "store")
    store.create(["a"])
    return store


def test_it_shows_what_was_published_last(tmp_path: Path, store: KeyStore) -> None:
    mount = SecretMount(tmp_path / "mount", store.frontends)
    mount.publish()
    before = read_key_files(mount.folder)
    assert before == read_key_files(store.frontends)
    store.add("b")
    assert read_key_files(mount.folder) == before
    mount.publish()
    assert read_key_files(mount.folder) == read_key_files(store.frontends) != before


def test_one_version_is_left(tmp_path: Path, store: KeyStore) -> None:
    mount = SecretMount(tmp_path / "mount", store.frontends)
    for _ in range(3):
        mount.publish()
    assert sorted(os.listdir(mount.folder)) == ["..data", "..version-3"]


def test_a_changed_file_stands_in_that_version_alone(tmp_path: Path, store: KeyStore) -> None:
    mount = SecretMount(tmp_path / "mount", store.frontends)
    mount.publish({"allowed.json": "{"})
    assert read_key_files(mount.folder) == {**read_key_files(store.frontends), "allowed.json": "{"}
    mount.publish()
    assert read_key_files(mount.folder) == read_key_files(store.frontends)


def test_of_a_secret_that_is_gone_what_was_published_stays(tmp_path: Path, store: KeyStore) -> None:
    mount = SecretMount(tmp_path / "mount", store.engine("a"))
    mount.publish()
    before = read_key_files(mount.folder)
    shutil.rmtree(store.engine("a"))
    mount.publish()
    assert read_key_files(mount.folder) == before
