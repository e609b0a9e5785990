"""Raw sockets at the HTTP port: tricks with targets, hosts and framing, and clients that are slow on purpose.

A real uvicorn with the protocol and the gate that every frontend has; what the engines say is scripted.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from roundhouse.cli.http_protocol import BoundedHttpProtocol
from roundhouse.protocol import limits
from roundhouse.server.api_keys import KeyRing, key_of
from roundhouse.server.app import build_app
from roundhouse.server.gate import Gate
from tests.support.http_server import serving
from tests.support.scripted_llm import SETTINGS, Delta, Script, ScriptedLLM, server_state, spell

WAIT_S = 10.0
KEY = b"rh-the-key-of-the-test"
AUTH = b"Authorization: Bearer " + KEY + b"\r\n"
BODY = b'{"prompt":"a"}'
LENGTH = b"Content-Length: 14\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"
CLOSE = b"Connection: close\r\n"


class HastyProtocol(BoundedHttpProtocol):
    """As every connection, with deadlines that a test can wait for."""

    max_head_s = 0.3
    max_leftover_s = 0.3
    max_write_stall_s = 0.3


class Server:
    def __init__(self, port: int, llm: ScriptedLLM) -> None:
        self.port = port
        self.llm = llm

    def connect(self, raw: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        connection.sendall(raw)
        return connection

    def talk(self, *pieces: bytes) -> bytes:
        """What the server says until it closes; each piece is sent when the one before had time to be read alone."""
        with self.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i, piece in enumerate(pieces):
                connection.sendall(piece)
                if i < len(pieces) - 1:
                    self.pass_by()
            return read_to_end(connection)

    def pass_by(self) -> None:
        """Another connection's whole request: what was sent before it has been read."""
        with self.connect(b"GET /version HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n") as connection:
            assert statuses(read_to_end(connection)) == [200]


def read_to_end(connection: socket.socket) -> bytes:
    received = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(2**16):
            received += piece
    return bytes(received)


def read_to(connection: socket.socket, end: bytes) -> bytes:
    received = bytearray()
    while not received.endswith(end):
        piece = connection.recv(2**16)
        assert piece, bytes(received)
        received += piece
    return bytes(received)


def statuses(answers: bytes) -> list[int]:
    """Of every answer on a connection; texts of answers here hold no status line."""
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:] if part[:3].isdigit()]


def error_of(answer: bytes) -> dict[str, Any]:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]


@contextlib.contextmanager
def scripted(script: Script, protocol: Any = BoundedHttpProtocol) -> Iterator[Server]:
    llm = ScriptedLLM(script)
    ring = KeyRing([key_of(KEY.decode(), name="test")])
    with serving(Gate(build_app(server_state(llm), SETTINGS), lambda: ring), protocol) as port:
        yield Server(port, llm)


@pytest.fixture(scope="module")
def hello() -> Iterator[Server]:
    with scripted(spell("Hello")) as server:
        yield server


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    with scripted(spell("Hello"), HastyProtocol) as server:
        yield server


def get(target: bytes, *headers: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return b"GET " + target + b" " + version + b"\r\nHost: x\r\n" + b"".join(headers) + b"\r\n"


def completion(*headers: bytes, body: bytes = BODY, version: bytes = b"HTTP/1.1") -> bytes:
    start = b"POST /v1/completions " + version + b"\r\nHost: x\r\nContent-Type: application/json\r\n"
    return start + AUTH + b"".join(headers) + b"\r\n" + body


class TestTargets:
    """Without a key nothing but a probe is answered, however its path is spelled."""

    @pytest.mark.parametrize(
        ("target", "status"),
        [
            (b"/health", 200),
            (b"/healt%68", 200),
            (b"/health?x=/v1/models", 200),
            (b"/health#/../v1/models", 200),
            (b"http://evil/health", 200),
            (b"http://evil/v1/models", 401),
            (b"http://a@b/health@c/v1/models", 401),
            (b"http://evil?/health", 400),
            (b"http://evil", 400),
            (b"/v1/models", 401),
            (b"/v1%2Fmodels", 401),
            (b"/v1/models?/health", 401),
            (b"/v1/models#/health", 401),
            (b"/healt%2568", 401),
            (b"/health%2F..%2Fv1%2Fmodels", 401),
            (b"/health/../v1/models", 401),
            (b"/health%00", 401),
            (b"/health%20", 401),
            (b"/health%0d%0aX:%20y", 401),
            (b"/%ff%fe", 401),
            (b"//health", 401),
            (b"//evil/health", 401),
            (b"/HEALTH", 401),
            (b"*", 401),
            (b"\\health", 400),
            (b"/v1/models /health", 400),
            (b"/health\0", 400),
            (b"/h\xc3\xa9", 400),
            (b"", 400),
        ],
    )
    def test_a_target(self, hello: Server, target: bytes, status: int) -> None:
        assert statuses(hello.talk(get(target, CLOSE))) == [status]

    @pytest.mark.parametrize("host", [b"a/health?x=", b"a/?x=", b"/health", b"", b"x\r\nHost: a/health?"])
    def test_a_host_changes_no_path(self, hello: Server, host: bytes) -> None:
        raw = b"GET /v1/models HTTP/1.1\r\nHost: " + host + b"\r\n" + CLOSE + b"\r\n"
        assert statuses(hello.talk(raw)) == [401]
        assert statuses(hello.talk(raw.replace(CLOSE, CLOSE + AUTH))) == [200]

    @pytest.mark.parametrize("method", [b"CONNECT", b"OPTIONS", b"TRACE", b"DELETE", b"HEAD", b"PRI", b"PROPFIND"])
    def test_a_method_changes_nothing(self, hello: Server, method: bytes) -> None:
        assert statuses(hello.talk(get(b"/v1/models", CLOSE).replace(b"GET", method)))[0] in (400, 401)

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            (AUTH, 200),
            (AUTH + AUTH, 401),
            (AUTH + b"Authorization: Bearer wrong\r\n", 401),
            (b"Authorization: Bearer wrong\r\n" + AUTH, 401),
            (b"Authorization: Bearer\r\n " + KEY + b"\r\n", 400),
            (b"Authorization : Bearer " + KEY + b"\r\n", 400),
            (b"Authorization: Bearer " + KEY + b"\0\r\n", 400),
            (b"Authorization:Bearer " + KEY + b"\r\n", 200),
        ],
    )
    def test_a_header_of_a_key(self, hello: Server, headers: bytes, status: int) -> None:
        assert statuses(hello.talk(get(b"/v1/models", headers, CLOSE))) == [status]


class TestFraming:
    """Two servers that disagree about where a request ends let one client speak in another's name."""

    @pytest.mark.parametrize(
        "request_",
        [
            completion(LENGTH, CHUNKED, body=CHUNKS),
            completion(CHUNKED, LENGTH, body=CHUNKS),
            completion(LENGTH, b"Content-Length: 3\r\n"),
            completion(LENGTH, LENGTH),
            completion(b"Content-Length: 14, 14\r\n"),
            completion(b"Content-Length: +14\r\n"),
            completion(b"Content-Length: -1\r\n"),
            completion(b"Content-Length: 0x14\r\n"),
            completion(b"Content-Length: 99999999999999999999999\r\n"),
            completion(b"Content-Length : 14\r\n"),
            completion(b"Transfer-Encoding: xchunked\r\n", body=CHUNKS),
            completion(b"Transfer-Encoding: chunked, identity\r\n", body=CHUNKS),
            completion(b"Transfer-Encoding: \x0bchunked\r\n", body=CHUNKS),
            completion(b"Transfer-Encoding : chunked\r\n", body=CHUNKS),
            completion(CHUNKED, body=b"-e\r\n" + BODY + b"\r\n0\r\n\r\n"),
            completion(CHUNKED, body=b"0xe\r\n" + BODY + b"\r\n0\r\n\r\n"),
            completion(CHUNKED, body=b"fffffffffffffffff\r\n" + BODY),
            completion(CHUNKED, body=b"d\r\n" + BODY + b"\r\n0\r\n\r\n"),
            completion(CHUNKED, body=b"e\n" + BODY + b"\n0\n\n"),
            completion(b"A: b\0c\r\n", LENGTH),
            completion(b"A: b\rContent-Length: 3\r\n", LENGTH),
            completion(LENGTH).replace(b"\r\n", b"\n"),
        ],
        ids=range(22),
    )
    def test_what_two_servers_could_read_in_two_ways_is_refused(self, hello: Server, request_: bytes) -> None:
        num_calls = len(hello.llm.calls)
        answer = hello.talk(request_ + get(b"/v1/models", AUTH, CLOSE))
        # One answer, and the connection is closed: what follows is read by nobody.
        assert (statuses(answer), len(hello.llm.calls)) == ([400], num_calls)

    @pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
    @pytest.mark.parametrize(
        "framed", [(LENGTH, BODY), (CHUNKED, CHUNKS), (CHUNKED, b"e;a=b\r\n" + BODY + b"\r\n0\r\nX: y\r\n\r\n")]
    )
    def test_a_body_is_read_by_its_framing(self, hello: Server, framed: tuple[bytes, bytes], version: bytes) -> None:
        answer = hello.talk(completion(framed[0], CLOSE, body=framed[1], version=version))
        assert statuses(answer) == [200]
        assert b'"text":"Hello"' in answer

    def test_requests_in_one_write_are_answered_in_order_and_each_needs_its_own_key(self, hello: Server) -> None:
        raw = get(b"/version") + completion(LENGTH) + get(b"/v1/models") + get(b"/v1/models", AUTH, CLOSE)
        assert statuses(hello.talk(raw)) == [200, 200, 401, 200]

    def test_nothing_is_read_behind_a_request_to_close(self, hello: Server) -> None:
        assert statuses(hello.talk(get(b"/version", CLOSE) + get(b"/version"))) == [200]

    def test_a_body_that_nobody_reads_is_no_request(self, hello: Server) -> None:
        inner = get(b"/v1/models", AUTH)
        raw = get(b"/version", b"Content-Length: %d\r\n" % len(inner)) + inner + get(b"/ping", CLOSE)
        assert statuses(hello.talk(raw)) == [200, 200]

    def test_a_client_that_asks_whether_to_go_on_is_told_or_refused(self, hello: Server) -> None:
        expect = b"Expect: 100-continue\r\n"
        with hello.connect(completion(LENGTH, expect, CLOSE, body=b"")) as connection:
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(BODY)
            assert statuses(read_to_end(connection)) == [200]
        with hello.connect(completion(LENGTH, expect, CLOSE, body=b"").replace(AUTH, b"")) as connection:
            assert statuses(read_to_end(connection)) == [401]


class TestUpgrades:
    """Nothing is upgraded. Java's client asks for h2c on every first request, those with a body too."""

    @pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.0"])
    @pytest.mark.parametrize("framed", [(LENGTH, BODY), (CHUNKED, CHUNKS)], ids=["length", "chunks"])
    @pytest.mark.parametrize("num_pieces", [1, 2, 3])
    def test_the_body_of_one_who_asks_is_its_body(
        self, hello: Server, protocol: bytes, framed: tuple[bytes, bytes], num_pieces: int
    ) -> None:
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + b"\r\nHTTP2-Settings: AAMAAABk\r\n"
        head, body = completion(framed[0], upgrade, body=b""), framed[1]
        pieces = {1: [head + body], 2: [head, body], 3: [head[:40], head[40:] + body[:5], body[5:]]}[num_pieces]
        answer = hello.talk(*pieces[:-1], pieces[-1] + get(b"/v1/models", AUTH, CLOSE))
        assert statuses(answer) == [200, 200]
        assert b'"text":"Hello"' in answer

    @pytest.mark.parametrize("num_pieces", [1, 2])
    def test_a_request_in_the_body_of_one_is_no_request(self, hello: Server, num_pieces: int) -> None:
        inner = get(b"/v1/models", AUTH)
        upgrade = b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n" % len(inner)
        pieces = [get(b"/version", upgrade), inner + get(b"/ping", CLOSE)]
        assert statuses(hello.talk(*(pieces if num_pieces == 2 else [b"".join(pieces)]))) == [200, 200]

    def test_many_that_ask_in_one_write_are_answered(self, hello: Server, caplog: pytest.LogCaptureFixture) -> None:
        asking = get(b"/version", b"Connection: Upgrade\r\nUpgrade: h2c\r\n")
        assert statuses(hello.talk(asking * 800 + get(b"/version", CLOSE))) == [200] * 801
        assert caplog.records == []

    def test_one_needs_a_key_as_any_other(self, hello: Server) -> None:
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        assert statuses(hello.talk(get(b"/v1/realtime", upgrade) + get(b"/v1/models", CLOSE))) == [401, 401]


class TestSlowClients:
    @pytest.mark.parametrize(
        "beginning",
        [b"GET /version", b"GET /version\r\n", b"GET /version HTTP/1.1\r\nA: b\r\n", get(b"/version") + b"GET /v"],
    )
    def test_a_head_that_does_not_end_is_given_up(self, hasty: Server, beginning: bytes) -> None:
        answer = hasty.talk(beginning)
        assert statuses(answer)[-1] == 408 or beginning == b"GET /version\r\n"

    @pytest.mark.parametrize("drop", [b"\r\n", b"a: b\r\n"])
    def test_more_of_it_is_no_reprieve(self, hasty: Server, drop: bytes) -> None:
        with hasty.connect(b"" if drop == b"\r\n" else b"GET /version HTTP/1.1\r\n") as connection:
            connection.settimeout(0.02)
            closed = False
            for _ in range(500):
                try:
                    connection.sendall(drop)
                    closed = not connection.recv(2**16)
                except TimeoutError:
                    continue
                except (ConnectionResetError, BrokenPipeError):
                    closed = True
                if closed:
                    break
            assert closed

    def test_a_connection_that_says_nothing_is_closed(self, hasty: Server) -> None:
        assert hasty.talk(b"") == b""

    def test_a_head_in_time_is_served_as_often_as_it_comes(self, hasty: Server) -> None:
        with hasty.connect() as connection:
            for _ in range(3):
                for part in (b"GET /version HTTP/1.1\r\n", b"A: b\r\n", b"\r\n"):
                    connection.sendall(part)
                    hasty.pass_by()
                assert read_to(connection, b'"}').startswith(b"HTTP/1.1 200 ")

    def test_the_rest_of_a_body_that_was_answered_is_not_waited_for(self, hasty: Server) -> None:
        raw = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000
        assert statuses(hasty.talk(raw)) == [401]

    def test_the_rest_of_one_that_comes_soon_is_read_over(self, hasty: Server) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"
        assert statuses(hasty.talk(head, b"x" * 50_000, b"x" * 50_000 + get(b"/ping", CLOSE))) == [401, 200]

    def test_one_that_reads_nothing_is_cut_off(self) -> None:
        with scripted(lambda call: [[Delta("x" * 2**16)]] * 2000, HastyProtocol) as server:
            body = b'{"prompt":"a","stream":true}'
            with server.connect(completion(b"Content-Length: %d\r\n" % len(body), body=body)):
                assert server.llm.has_aborted.acquire(timeout=WAIT_S)

    def test_a_long_answer_outlives_every_deadline(self) -> None:
        """With half of a further head behind it, which waits for its turn."""
        steps: list[Any] = [[Delta("x")]] * 2000 + [[Delta("", finish_reason="stop")]]

        with scripted(lambda call: steps, HastyProtocol) as server:
            body = b'{"prompt":"a","stream":true}'
            raw = completion(b"Content-Length: %d\r\n" % len(body), body=body) + b"GET /ver"
            with server.connect(raw) as connection:
                assert b"data: [DONE]" in read_to_end(connection)


class TestManyClients:
    def test_a_connection_over_the_bound_is_told_so_and_others_stay(self) -> None:
        with (
            scripted(spell("Hello"), partial(BoundedHttpProtocol, max_connections=3)) as server,
            contextlib.ExitStack() as stack,
        ):
            held = [stack.enter_context(server.connect(get(b"/version"))) for _ in range(3)]
            for connection in held:
                assert read_to(connection, b'"}').startswith(b"HTTP/1.1 200 ")
            with server.connect() as connection:
                answer = read_to_end(connection)
            assert (statuses(answer), error_of(answer)["type"]) == ([503], "server_error")
            held[0].sendall(get(b"/version"))
            assert read_to(held[0], b'"}').startswith(b"HTTP/1.1 200 ")
            held[1].close()
            while statuses(server.talk(get(b"/version", CLOSE))) != [200]:
                pass


class TestBodies:
    """Bodies that hurt other servers. Each ends in a 400 that is short, whatever was sent."""

    @pytest.mark.parametrize(
        "body",
        [
            b'{"prompt":' + b"[" * 1_000_000,
            b'{"a":' * 500_000,
            b'{"prompt":"a","seed":' + b"9" * 1_000_000 + b"}",
            b'{"prompt":"a","temperature":1e999}',
            b'{"prompt":"a","temperature":NaN}',
            b'{"prompt":"a","temperature":Infinity}',
            b'{"prompt":"\xff"}',
            b'{"prompt":"\\ud800"}',
            b'{"prompt":"a","n":' + b"1" * 400 + b"}",
            b'{"prompt":"a","n":1000000000}',
            b'{"prompt":["' + b'","'.join([b"a"] * 129) + b'"]}',
            b'{"prompt":["a","b"],"n":100}',
            b'{"prompt":"' + b"a" * 4_000_000 + b'"}',
            b'{"prompt":"a","stop":["' + b"a" * 2_000_000 + b'"]}',
            b'{"prompt":"a","logit_bias":{' + b",".join(b'"%d":1' % i for i in range(200_000)) + b"}}",
            b"\0" * 1000,
            b"\xef\xbb\xbf" + BODY,
            BODY.decode().encode("utf-16"),
        ],
        ids=range(18),
    )
    def test_a_body(self, hello: Server, body: bytes) -> None:
        answer = hello.talk(completion(b"Content-Length: %d\r\n" % len(body), CLOSE, body=body))
        assert statuses(answer) == [400]
        assert (error_of(answer)["type"], len(answer) < 2000) == ("invalid_request_error", True)

    def test_the_last_of_two_equal_fields_counts_as_everywhere(self, hello: Server) -> None:
        body = b'{"prompt":"a","prompt":"b","n":1000,"n":1}'
        assert statuses(hello.talk(completion(b"Content-Length: %d\r\n" % len(body), CLOSE, body=body))) == [200]
        assert hello.llm.calls[-1].prompt == {"prompt": "b"}

    def test_a_body_over_the_bound_is_refused_by_its_length(self, hello: Server) -> None:
        raw = completion(b"Content-Length: %d\r\n" % (limits.MAX_BODY_BYTES + 1), CLOSE, body=b"")
        assert statuses(hello.talk(raw)) == [413]
