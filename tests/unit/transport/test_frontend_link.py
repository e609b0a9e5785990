"""The private folder of a frontend: whose it is, who holds it, and that it goes away."""

import fcntl
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.address import TcpAddress, parse_address
from roundhouse.transport.frontend_link import FrontendLink, _ports, fresh_ipc_address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mesh"


@pytest.fixture
def link(folder: Path) -> Iterator[FrontendLink]:
    link = FrontendLink(f"ipc://{folder}")
    yield link
    link.close()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    addresses = [fresh_ipc_address() for _ in range(2)]
    folders = [Path(address.removeprefix("ipc://")) for address in addresses]
    assert len(set(folders)) == 2
    assert [(each.parent, mode_of(each), list(each.iterdir())) for each in folders] == [(tmp_path, 0o700, [])] * 2
    FrontendLink(addresses[0]).close()
    assert list(tmp_path.iterdir()) == [folders[1]]


def test_the_folder_is_made_private_and_goes_with_its_link(folder: Path, link: FrontendLink) -> None:
    assert (mode_of(folder), mode_of(folder / "lock")) == (0o700, 0o600)
    assert {each.name for each in folder.iterdir()} == {"lock", "in.sock", "out.sock"}
    link.close()
    link.close()
    assert not folder.exists()


def test_a_folder_that_others_may_enter_is_refused_and_left_as_it_was(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(ConfigError) as raised:
        FrontendLink(f"ipc://{folder}")
    assert raised.value.message == f"cannot listen on ipc://{folder}: {folder} must be yours alone (chmod 700)"
    assert (mode_of(folder), list(folder.iterdir())) == (0o750, [])


def test_one_frontend_holds_an_address_until_it_is_closed(folder: Path, link: FrontendLink) -> None:
    with (folder / "lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with pytest.raises(ConfigError) as raised:
        FrontendLink(f"ipc://{folder}")
    assert raised.value.message == f"cannot listen on ipc://{folder}: another frontend does"
    assert {each.name for each in folder.iterdir()} == {"lock", "in.sock", "out.sock"}
    link.close()
    FrontendLink(f"ipc://{folder}").close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    address = f"ipc://{tmp_path}/file/mesh"
    with pytest.raises(ConfigError) as raised:
        FrontendLink(address)
    assert raised.value.message == f"cannot listen on {address}: Not a directory"


def test_the_ports_that_are_its_own() -> None:
    address = parse_address("tcp://127.0.0.1:5570")
    assert isinstance(address, TcpAddress)
    assert _ports(address, has_keys=False) == {5570, 5571}
    assert _ports(address, has_keys=True) == {5570, 5571, 5572, 5573}
