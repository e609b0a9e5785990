import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.protocol.errors import ConfigError
from roundhouse.transport.address import IpcAddress, TcpAddress, parse_address


@pytest.mark.parametrize(
    ("text", "value", "endpoints"),
    [
        ("tcp://127.0.0.1:5570", TcpAddress("127.0.0.1", 5570), ("tcp://127.0.0.1:5570", "tcp://127.0.0.1:5571")),
        ("tcp://[::1]:5570", TcpAddress("::1", 5570), ("tcp://[::1]:5570", "tcp://[::1]:5571")),
        ("tcp://*:1", TcpAddress("*", 1), ("tcp://*:1", "tcp://*:2")),
        ("tcp://w-0.x_y.:65534", TcpAddress("w-0.x_y.", 65534), ("tcp://w-0.x_y.:65534", "tcp://w-0.x_y.:65535")),
        ("ipc:///run/mesh", IpcAddress("/run/mesh"), ("ipc:///run/mesh/in.sock", "ipc:///run/mesh/out.sock")),
        ("ipc:///run/mesh/", IpcAddress("/run/mesh"), ("ipc:///run/mesh/in.sock", "ipc:///run/mesh/out.sock")),
    ],
)  # fmt: skip
def test_one_text_names_both_sockets(text: str, value: TcpAddress | IpcAddress, endpoints: tuple[str, str]) -> None:
    address = parse_address(text)
    assert address == value
    assert (address.input_endpoint, address.output_endpoint) == endpoints
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("127.0.0.1:5570", "expected tcp://HOST:PORT or ipc:///FOLDER"),
        ("udp://127.0.0.1:5570", "expected tcp://HOST:PORT or ipc:///FOLDER"),
        ("tcp://127.0.0.1", "expected tcp://HOST:PORT"),
        ("tcp://127.0.0.1:", "expected tcp://HOST:PORT"),
        ("tcp://::1:5570", "in brackets"),
        ("tcp://[127.0.0.1]:5570", "not an IPv6 address"),
        ("tcp://[::g]:5570", "not an IPv6 address"),
        ("tcp://127.0.0.1:0", "between 1 and 65534"),
        ("tcp://127.0.0.1:65535", "between 1 and 65534"),
        ("tcp://127.0.0.256:5570", "not a host"),
        ("tcp://a b:5570", "not a host"),
        ("tcp://:5570", "not a host"),
        ("tcp://-a:5570", "not a host"),
        ("ipc://run/mesh", "absolute folder"),
        ("ipc://@mesh", "absolute folder"),
        ("ipc:///", "absolute folder"),
        ("ipc:///a\0b", "absolute folder"),
        ("ipc:///" + "x" * 98, "has 108 bytes and the system allows 107"),
        ("ipc:///" + "ü" * 49, "has 108 bytes and the system allows 107"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert part in caught.value.message
    assert repr(text) in caught.value.message
    assert "\n" not in caught.value.message


def test_the_longest_path_that_the_system_takes() -> None:
    address = parse_address("ipc:///" + "x" * 97)
    assert len(address.output_endpoint.removeprefix("ipc://")) == 107


@pytest.mark.parametrize(
    ("text", "is_literal", "is_loopback"),
    [
        ("tcp://127.8.9.1:1", True, True),
        ("tcp://[::1]:1", True, True),
        ("tcp://localhost:1", False, True),
        ("tcp://0.0.0.0:1", True, False),
        ("tcp://[::]:1", True, False),
        ("tcp://*:1", False, False),
        ("tcp://10.0.0.1:1", True, False),
        ("tcp://frontends:1", False, False),
    ],
)
def test_who_can_reach_it(text: str, is_literal: bool, is_loopback: bool) -> None:
    address = parse_address(text)
    assert isinstance(address, TcpAddress)
    assert (address.is_literal, address.is_loopback) == (is_literal, is_loopback)


@given(st.text(max_size=40), st.sampled_from(["", "tcp://", "ipc:///", "tcp://[", "tcp://a:"]))
def test_any_text_is_an_address_or_a_config_error(text: str, start: str) -> None:
    try:
        address = parse_address(start + text)
    except ConfigError:
        return
    assert parse_address(str(address)) == address
