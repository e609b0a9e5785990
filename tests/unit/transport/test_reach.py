"""Which addresses need keys: to listen on and to connect to."""

import pytest

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.address import parse_address
from roundhouse.transport.frontend_link import FrontendLink
from roundhouse.transport.reach import check_bind, check_connect

LOCAL = ["tcp://127.0.0.1:5570", "tcp://127.9.9.9:5570", "tcp://[::1]:5570", "tcp://localhost:5570", "ipc:///run/mesh"]
EXPOSED = ["tcp://0.0.0.0:5570", "tcp://10.0.0.1:5570", "tcp://[::]:5570", "tcp://[fd00::1]:5570", "tcp://*:5570"]


@pytest.mark.parametrize("text", LOCAL)
def test_what_stays_on_this_machine_needs_nothing(text: str) -> None:
    for check in (check_bind, check_connect):
        check(parse_address(text), has_keys=False, insecure_mesh=False)


@pytest.mark.parametrize("text", EXPOSED)
def test_what_others_reach_needs_keys_or_a_word(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        FrontendLink(text)
    assert raised.value.message == (
        f"cannot listen on {text}: others could reach it, and the mesh asks for no key; make keys with `roundhouse "
        "keys new` and give --mesh-keys, bind a loopback address or ipc, or allow it with --insecure-mesh"
    )
    for has_keys, insecure_mesh in ((True, False), (False, True)):
        check_bind(parse_address(text), has_keys=has_keys, insecure_mesh=insecure_mesh)


@pytest.mark.parametrize("text", [*EXPOSED, "tcp://frontends:5570"])
def test_an_engine_goes_nowhere_without_keys_or_a_word(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_connect(parse_address(text), has_keys=False, insecure_mesh=False)
    assert raised.value.message == (
        f"cannot connect to {text}: it is not on this machine, and without a key anybody on the way could read and "
        "change everything; give --mesh-keys, or allow it with --insecure-mesh"
    )
    for has_keys, insecure_mesh in ((True, False), (False, True)):
        check_connect(parse_address(text), has_keys=has_keys, insecure_mesh=insecure_mesh)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_name_is_nothing_to_listen_on(allowed: bool) -> None:
    with pytest.raises(ConfigError) as raised:
        check_bind(parse_address("tcp://frontends:5570"), has_keys=allowed, insecure_mesh=allowed)
    assert raised.value.message == (
        "cannot listen on tcp://frontends:5570: a frontend binds an IP address, localhost or *"
    )
