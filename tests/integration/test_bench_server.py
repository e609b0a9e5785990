"""A server under measurement, played by a small script: awaited, weighed by role, and ended with its whole tree."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from tests.bench.errors import BenchError
from tests.bench.server import BenchServer, free_port, running

SCRIPT = """
import http.server, subprocess, sys

statuses = [int(status) for status in sys.argv[2].split(",")]
engine = subprocess.Popen([sys.executable, "-c", "input()", "the engine"], stdin=subprocess.PIPE)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        status = statuses.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b'data: {"choices":[{"text":"a"}]}\\n\\ndata: [DONE]\\n\\n' if status == 200 else b"not now")


print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def scripted(*statuses: int) -> BenchServer:
    port = free_port()
    command = [sys.executable, "-c", SCRIPT, str(port), ",".join(map(str, statuses))]
    return BenchServer("scripted", "none", command, {}, "a-model", port)


def test_a_server_is_ready_when_it_streams_and_ends_with_the_block(tmp_path: Path) -> None:
    with running(scripted(503, 404, 200), tmp_path / "log", [1, 2, 3]) as server:
        tree = [server.process, *server.process.children()]
        peaks = server.peak_rss_mib()
        assert 0 < server.ready_s < 60
    assert len(tree) == 2
    assert list(peaks) == ["frontend", "engine", "all processes"]
    assert peaks["all processes"] == peaks["frontend"] + peaks["engine"] > 5
    assert [process.pid for process in tree if psutil.pid_exists(process.pid)] == []
    assert "listening" in (tmp_path / "log").read_text()
    with pytest.raises(BenchError, match=r"^scripted has ended$"):
        server.peak_rss_mib()


def test_a_server_that_refuses_the_request_is_not_asked_again(tmp_path: Path) -> None:
    with (
        pytest.raises(BenchError, match=r"^scripted refuses the request with status 400: not now$"),
        running(scripted(400), tmp_path / "log", [1]),
    ):
        pass


def test_a_server_that_ends_by_itself_is_quoted(tmp_path: Path) -> None:
    server = BenchServer("broken", "none", [sys.executable, "-c", "raise SystemExit('no such model')"], {}, "m", 1)
    with (
        pytest.raises(BenchError, match=r"^broken ended with exit code 1: no such model$"),
        running(server, tmp_path / "log", [1]),
    ):
        pass


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    server = BenchServer("absent", "none", [str(tmp_path / "nothing")], {}, "m", 1)
    with pytest.raises((BenchError, OSError), match="nothing"), running(server, tmp_path / "log", [1]):
        pass
