"""The listening socket and the sentence of each way in which there is none."""

import resource
import signal
import socket
from functools import partial

import pytest

from roundhouse.cli.frontend import HttpFrontend
from roundhouse.cli.http_protocol import BoundedHttpProtocol
from roundhouse.cli.http_server import HttpServer, bind, max_api_connections, url_host
from roundhouse.cli.options import AdminSettings, HttpSettings
from roundhouse.protocol import limits
from roundhouse.protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]"), ("::", "[::]")],
)
def test_a_host_as_it_stands_in_a_url(host: str, expected: str) -> None:
    assert url_host(host) == expected


def test_a_socket_that_listens_and_never_blocks() -> None:
    with bind("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        assert (host, port > 0, listener.getblocking()) == ("127.0.0.1", True, False)
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1


def test_a_port_that_is_taken_is_named_with_the_likely_reason() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            bind("127.0.0.1", port)
    assert raised.value.message == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; is another server running?"
    )


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(ConfigError) as raised:
        bind("192.0.2.1", 8000)  # of TEST-NET-1, which no machine has
    assert raised.value.message == "cannot listen on 192.0.2.1:8000: Cannot assign requested address"


def test_a_host_that_has_no_address() -> None:
    with pytest.raises(ConfigError, match=r"^cannot listen on 256\.0\.0\.1\.: \S"):
        bind("256.0.0.1.", 8000)


def test_the_server_leaves_signals_to_the_command_and_stops_when_told() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    server = HttpServer(None)
    with server.capture_signals():
        assert [signal.getsignal(number) for number in numbers] == before
    assert not server.should_exit
    server.stop()
    assert server.should_exit


def protocol_of(server: HttpServer) -> tuple[object, dict[str, object]]:
    server.config.load()
    made = server.config.http_protocol_class
    assert isinstance(made, partial)
    return made.func, made.keywords


def test_the_server_speaks_the_bounded_protocol() -> None:
    """What it bounds is tested with the API, under this same class."""
    assert protocol_of(HttpServer(None)) == (BoundedHttpProtocol, {"max_connections": max_api_connections()})
    assert protocol_of(HttpServer(None, max_connections=3)) == (BoundedHttpProtocol, {"max_connections": 3})


def test_the_admin_port_has_a_bound_of_its_own() -> None:
    services = HttpFrontend(HttpSettings("127.0.0.1", 0, ("m",), 1.0), AdminSettings("127.0.0.1", 0, None))
    try:
        bounds = [protocol_of(server)[1]["max_connections"] for server, _ in services._servers]
    finally:
        for _, listener in services._servers:
            listener.close()
    assert bounds == [max_api_connections(), limits.MAX_ADMIN_CONNECTIONS]


def test_http_takes_its_share_of_the_files_that_the_process_may_open() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert max_api_connections() == int(256 * limits.HTTP_CONNECTIONS_SHARE)
        assert limits.HTTP_CONNECTIONS_SHARE + limits.MESH_CONNECTIONS_SHARE < 0.9
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
