"""The compiled load client against a server that cuts its bytes as it likes."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

import pytest

from tests.bench.load_client import LoadedRequest, build_client, run_client

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the load client is compiled, and there is no gcc")

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"id":"a","choices":[{"index":0,"text":"\\"error\\": x","finish_reason":null}]}\n\n'
SPACED = b'data:{"choices": [ {"text": "b"} ], "error": null}\r\n\r\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = TOKEN + b": a comment\n\n" + SPACED + TOKEN + USAGE + DONE


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_client(tmp_path_factory.mktemp("client"))


class ScriptedServer:
    """Answers the n-th request, over all its connections in turn, with the n-th answer: what to send, cut by cut."""

    def __init__(self, answers: Sequence[Sequence[bytes]], *, keeps: bool) -> None:
        self._answers = list(answers)
        self._keeps = keeps
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.bodies: list[dict[str, object]] = []
        self.num_connections = 0

    def run(self) -> None:
        while self._answers:
            connection, _ = self._listener.accept()
            self.num_connections += 1
            with connection, connection.makefile("rb") as reader:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while self._answers and self._answer(connection, reader):
                    pass

    def _answer(self, connection: socket.socket, reader: BufferedReader) -> bool:
        """Whether the connection is kept."""
        head: list[bytes] = []
        while (line := reader.readline()) not in (b"\r\n", b""):
            head.append(line.lower())
        if not head:
            return False
        (length,) = (int(line.split(b":")[1]) for line in head if line.startswith(b"content-length"))
        self.bodies.append(json.loads(reader.read(length)))
        for cut in self._answers.pop(0):
            connection.sendall(cut)
        return self._keeps

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run, name="scripted-server")
        thread.start()
        try:
            yield
        finally:
            thread.join(30)
            self._listener.close()
            assert not thread.is_alive(), "answers are left that nobody asked for"


def load(
    client: Path, tmp_path: Path, *answers: Sequence[bytes], requests_each: int = 1, keeps: bool = True
) -> tuple[list[LoadedRequest], ScriptedServer]:
    server = ScriptedServer(answers, keeps=keeps)
    with server.running():
        report = run_client(
            client,
            server.port,
            [{"number": 0}, {"number": 1}],
            tmp_path,
            num_streams=1,
            requests_each=requests_each,
        )
    assert report.wall_s > 0
    return report.requests, server


@pytest.mark.parametrize("chunk_size", [1, 7, 50, 10_000])
@pytest.mark.parametrize("cut_size", [1, 13, 10_000])
def test_events_are_found_however_the_stream_is_cut(
    client: Path, tmp_path: Path, chunk_size: int, cut_size: int
) -> None:
    answer = CHUNKED + chunked(STREAM, chunk_size)
    cuts = [answer[start : start + cut_size] for start in range(0, len(answer), cut_size)]
    (request,), _ = load(client, tmp_path, cuts)
    assert (request.error, request.status, request.is_done) == ("", 200, True)
    assert (request.num_events, request.completion_tokens, request.prompt_tokens) == (3, 3, 8)
    assert len(request.gaps_us) == 2
    assert 0 <= request.ttft_us <= request.ttft_us + sum(request.gaps_us) <= request.end_us - request.start_us


def test_a_kept_connection_serves_one_request_after_the_other(client: Path, tmp_path: Path) -> None:
    requests, server = load(client, tmp_path, *[[CHUNKED + chunked(STREAM, 100)]] * 3, requests_each=3)
    assert [(request.error, request.num_events) for request in requests] == [("", 3)] * 3
    assert server.bodies == [{"number": 0}, {"number": 1}, {"number": 0}]
    assert server.num_connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Connection: close\r\n\r\n" + STREAM,
        HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(STREAM) + STREAM,
        CHUNKED + chunked(STREAM, 100),
    ],
    ids=["to the end of the connection", "of a length", "closed without a word"],
)
def test_a_connection_that_is_not_kept_is_opened_again(client: Path, tmp_path: Path, answer: bytes) -> None:
    requests, server = load(client, tmp_path, [answer], [answer], requests_each=2, keeps=False)
    assert [(request.error, request.num_events) for request in requests] == [("", 3)] * 2
    assert server.num_connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", "status 503: busy"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "status 500"),
        (
            CHUNKED + chunked(TOKEN + b'data: {"error":{"message":"it broke"}}\n\n' + DONE, 100),
            'data: {"error":{"message":"it broke"}}',
        ),
        (CHUNKED + chunked(TOKEN, 100), "the stream ended without [DONE]"),
        (CHUNKED + b"ff\r\n" + TOKEN, "the connection ended: closed by the server"),
        (b"", "the connection ended: closed by the server"),
    ],
)
def test_what_fails_is_reported_and_ends_the_stream(client: Path, tmp_path: Path, answer: bytes, error: str) -> None:
    requests, _ = load(client, tmp_path, [answer], requests_each=5, keeps=False)
    assert [request.error for request in requests] == [error]


def test_a_server_that_is_not_there(client: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    report = run_client(client, port, [{}], tmp_path, num_streams=3, requests_each=1)
    assert [request.error for request in report.requests] == ["connecting: Connection refused"] * 3
