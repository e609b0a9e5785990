"""`roundhouse keys`: what it writes, what it says to do next, and that no key is ever lost by accident."""

from __future__ import annotations

import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click.testing
import pytest

from roundhouse.cli.key_store import KeyStore
from roundhouse.cli.main import cli
from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.key_folder import read_key_files
from roundhouse.transport.keys import EngineKeys, fingerprint, parse_engine_keys


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mesh"


@pytest.fixture
def store(folder: Path) -> KeyStore:
    store = KeyStore(folder)
    store.create(["a", "b"])
    return store


def run(*arguments: object) -> str:
    done = click.testing.CliRunner().invoke(cli, ["keys", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def files(folder: Path) -> dict[str, str]:
    """Path → text of everything there is."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def engine(store: KeyStore, identity: str) -> EngineKeys:
    return parse_engine_keys(read_key_files(store.engine(identity)))


def allowed(store: KeyStore) -> list[tuple[str, str, int | None]]:
    return [(grant.identity, grant.public, grant.epoch) for grant in store.read().grants.values()]


def test_new_keys_fit_each_other_and_are_ones_own(folder: Path) -> None:
    said = run("new", folder, "--engines", "a, b")
    store = KeyStore(folder)
    assert sorted(files(folder)) == [
        ".lock",
        "engines/a/client.key",
        "engines/a/server-1.pub",
        "engines/b/client.key",
        "engines/b/server-1.pub",
        "frontends/allowed.json",
        "frontends/server-1.key",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_dir()} == {0o700}
    assert allowed(store) == [(name, engine(store, name).client.public, None) for name in ("a", "b")]
    assert engine(store, "a").servers == {1: store.read().servers[1].public}
    assert f"roundhouse frontend … --mesh-keys {folder}/frontends" in said
    assert f"roundhouse engine … --identity b --mesh-keys {folder}/engines/b" in said


def test_nothing_is_ever_overwritten(store: KeyStore, folder: Path) -> None:
    before = files(folder)
    for attempt in (lambda: store.create(["c"]), lambda: store.add("a"), lambda: store.retire_server()):
        with pytest.raises(ConfigError):
            attempt()
    with pytest.raises(ConfigError, match="is there already and was left as it is"):
        store._write(folder / "engines/a/client.key", "other")
    assert files(folder) == before


@pytest.mark.parametrize("identity", ["", "..", "a/b", "x" * 129, "a\0b"])
def test_an_identity_that_can_be_no_folder(folder: Path, identity: str) -> None:
    with pytest.raises(ConfigError):
        KeyStore(folder).create([identity])
    assert not folder.exists()


def test_one_more_engine_for_one_epoch(store: KeyStore, folder: Path) -> None:
    said = run("add", folder, "c", "--epoch", 7)
    assert allowed(store)[-1] == ("c", engine(store, "c").client.public, 7)
    assert said.index("1. bring") < said.index("2. roundhouse engine")


def test_the_server_key_goes_round(store: KeyStore, folder: Path) -> None:
    first = store.read().servers[1]
    assert "5572" in run("rotate-server", folder)
    both = store.read().servers
    assert (list(both), both[1]) == ([1, 2], first)
    assert engine(store, "b").servers == {number: pair.public for number, pair in both.items()}
    with pytest.raises(ConfigError, match="two server keys are in use already"):
        store.rotate_server()
    run("retire", folder)
    assert store.read().servers == {2: both[2]}
    assert engine(store, "b").servers == {2: both[2].public}
    assert store.rotate_server() == 3


def test_an_engines_key_goes_round(store: KeyStore, folder: Path) -> None:
    old = engine(store, "a").client
    run("rotate-engine", folder, "a")
    new = engine(store, "a").client
    assert {public for name, public, _ in allowed(store) if name == "a"} == {old.public, new.public}
    with pytest.raises(ConfigError, match="engine a has two keys already"):
        store.rotate_engine("a")
    assert f"no longer allowed: engine a  {fingerprint(old.public)}" in run("retire", folder, "--engine", "a")
    assert {public for name, public, _ in allowed(store) if name == "a"} == {new.public}
    assert "there was nothing to retire" in run("retire", folder, "--engine", "a")


def test_one_key_or_a_whole_engine_is_revoked(store: KeyStore, folder: Path) -> None:
    old = engine(store, "a").client
    store.rotate_engine("a")
    run("revoke", folder, "a", "--key", fingerprint(old.public))
    assert [public for name, public, _ in allowed(store) if name == "a"] == [engine(store, "a").client.public]
    with pytest.raises(ConfigError, match="engine b has no key 0123; nothing was changed"):
        run("revoke", folder, "b", "--key", "0123")
    run("revoke", folder, "a")
    assert [name for name, _, _ in allowed(store)] == ["b"]
    assert store.identities() == ["b"]
    with pytest.raises(ConfigError, match="engine a has no such key that is allowed"):
        store.revoke("a")
    store.add("a")
    assert store.identities() == ["a", "b"]


@pytest.mark.parametrize("text", ["not a key", "", "~" * 40], ids=["words", "empty", "no Z85"])
def test_a_broken_key_of_the_engine_keeps_nobody_from_revoking_it(store: KeyStore, text: str) -> None:
    before = allowed(store)
    client = store.engine("a") / "client.key"
    client.write_text(text)
    for operation in (lambda: store.rotate_engine("a"), lambda: store.retire_engine("a")):
        with pytest.raises(ConfigError, match="a key has 40 characters of Z85"):
            operation()
    assert allowed(store) == before
    # By its name in the list, with the folder left as it is: nobody knows whose key is there.
    assert [grant.public for grant in store.revoke("a", before[0][1])] == [before[0][1]]
    assert client.exists()


def test_an_engine_is_revoked_with_its_folder_whatever_is_in_it(store: KeyStore) -> None:
    (store.engine("a") / "client.key").chmod(0o644)
    store.revoke("a")
    assert ([name for name, _, _ in allowed(store)], store.identities()) == (["b"], ["b"])


def test_a_folder_that_stays_is_told_with_what_is_done(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def rmtree(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(ConfigError) as raised:
        store.revoke("a")
    assert raised.value.message == (
        f"engine a is revoked (bring {store.frontends} to the frontends), but its folder is still there: "
        f"{store.engine('a')}: Permission denied"
    )
    assert [name for name, _, _ in allowed(store)] == ["b"]


def test_a_file_that_cannot_be_removed_is_an_error_of_ours(store: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.rotate_server()

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(ConfigError, match=r"server-1\.pub: Permission denied"):
        store.retire_server()
    assert list(store.read().servers) == [1, 2]


def test_operations_at_once_lose_nothing(store: KeyStore) -> None:
    """Each reads the list and writes it whole."""
    names = [f"more-{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(lambda name: KeyStore(store.folder).add(name), names))
    assert sorted(name for name, _, _ in allowed(store)) == ["a", "b", *names]


@pytest.mark.parametrize("operation", ["rotate_server", "retire_server"])
def test_nothing_is_made_where_no_keys_are(folder: Path, operation: str) -> None:
    with pytest.raises(ConfigError, match="has no keys: `roundhouse keys new"):
        getattr(KeyStore(folder), operation)()
    assert not folder.exists()


def test_what_there_is_is_shown_without_a_secret(store: KeyStore, folder: Path) -> None:
    said = run("show", folder)
    assert said.splitlines() == [
        f"server 1  {fingerprint(store.read().servers[1].public)}",
        f"engine a  {fingerprint(engine(store, 'a').client.public)}",
        f"engine b  {fingerprint(engine(store, 'b').client.public)}",
    ]


def test_a_folder_without_keys(folder: Path) -> None:
    with pytest.raises(ConfigError, match="has no keys: `roundhouse keys new"):
        KeyStore(folder).read()


def test_help_helps() -> None:
    said = run("--help")
    assert [word in said for word in ("new", "add", "rotate-server", "rotate-engine", "retire", "revoke")] == [True] * 6
