"""A frontend process under attack: the real client with streams that go on and on. `attacked_frontend.py CONFIG`.

CONFIG is JSON: {"address": …, "keys": folder, "streams": how many, "descriptors": soft limit or null}. Each stream is
pinned to the engine that came first, and checked token by token; when it ends the next one begins. A line on stdin
asks, a line of JSON on stdout answers:

    report    what happened since the report before, and totals; see `Report`
    kill zap  the handler of the keys dies at the next connection, and nobody starts it again
    wake zap  until now: it is started again as always
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from roundhouse.frontend.mp_client import AsyncMPClient
from roundhouse.transport import zap
from roundhouse.transport.key_folder import KeyFolder
from roundhouse.transport.keys import parse_frontend_keys
from tests.support.mesh import request

TOKENS_A_STREAM = 300
PROMPT = list(range(1, 98))


class Report(msgspec.Struct):
    """What happened since the report before, the first three and the last, and totals.

    fewest_tokens: that came by one of the streams. gap_s: the longest between two tokens of one stream. turn_cpu_s: of
    the event loop's thread, the most between two looks at its descriptors. stalled: engines that were.
    """

    fewest_tokens: int
    gap_s: float
    turn_cpu_s: float
    num_log_lines: int
    num_wrong: int
    num_descriptors: int
    engines: list[tuple[str, str]]
    session_ids: dict[str, int]
    routing_ids: dict[str, str]
    refused: dict[str, int]
    dropped: dict[str, int]
    limits: dict[str, int]
    without_hello: int
    counters: dict[str, Any]
    num_zap_restarts: int
    stalled: list[str]


class TurnLoop(asyncio.SelectorEventLoop):
    """Measures each of its turns in processor time of its own thread, so that a busy machine makes none longer."""

    longest_cpu_s = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_cpu_s = max(self.longest_cpu_s, time.thread_time() - began)


class Lines(logging.Handler):
    num_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.num_lines += 1


class Frontend:
    def __init__(self, config: dict[str, Any], lines: Lines) -> None:
        self._client = AsyncMPClient(config["address"], keys=KeyFolder(Path(config["keys"]), parse_frontend_keys))
        self._num_streams: int = config["streams"]
        self._lines = lines
        self._num_started = 0
        self._num_wrong = 0
        self._engine_index = 0
        self._places: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._tokens = [0] * self._num_streams
        self._last_at = [0.0] * self._num_streams
        self._gap_s = 0.0
        self._stalled: set[str] = set()

    async def run(self) -> None:
        self._client.start()
        await self._client.wait_for_engine()
        self._engine_index = self._client.engines()[0].engine_index
        for slot in range(self._num_streams):
            await self._begin(slot)
        reading = asyncio.create_task(self._read())
        handler: Any = self._client.link._zap
        working = zap.answer
        say("ready")
        lines = asyncio.Queue[str]()
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), lambda: lines.put_nowait(sys.stdin.readline()))
        while (line := (await lines.get()).strip()) and not reading.done():
            if line == "report":
                say(msgspec.json.encode(self._report()).decode())
            elif line == "kill zap":
                zap.answer = break_down
                handler.watch = lambda: None
                say("done")
            elif line == "wake zap":
                zap.answer = working
                del handler.watch
                say("done")

    async def _begin(self, slot: int) -> None:
        name = f"stream-{self._num_started}"
        self._num_started += 1
        self._places[name], self._slots[name] = 0, slot
        self._last_at[slot] = time.monotonic()
        fields = {"max_tokens": TOKENS_A_STREAM, "data_parallel_rank": self._engine_index}
        await self._client.add_request_async(request(name, prompt=PROMPT, **fields))

    async def _read(self) -> None:
        while True:
            outputs = (await self._client.get_output_async()).outputs
            self._stalled |= {view.identity for view in self._client.engines() if view.state == "stalled"}
            for output in outputs:
                name, now = output.request_id, time.monotonic()
                slot, place = self._slots[name], self._places[name]
                expected = [PROMPT[(place + ahead) % len(PROMPT)] for ahead in range(len(output.new_token_ids))]
                self._num_wrong += output.first_token_index != place or output.new_token_ids != expected
                self._num_wrong += output.finished and place + len(expected) != TOKENS_A_STREAM
                self._places[name] += len(expected)
                self._tokens[slot] += len(expected)
                self._gap_s = max(self._gap_s, now - self._last_at[slot])
                self._last_at[slot] = now
                if output.finished:
                    del self._places[name], self._slots[name]
                    await self._begin(slot)

    def _report(self) -> Report:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TurnLoop)
        client = self._client
        keys = client.key_counters()
        members = client._engines.members()
        report = Report(
            min(self._tokens),
            self._gap_s,
            loop.longest_cpu_s,
            self._lines.num_lines,
            self._num_wrong,
            len(os.listdir("/proc/self/fd")),
            [(view.identity, view.state) for view in client.engines()],
            {member.hello.identity: member.session_id for member in members},
            {member.hello.identity: member.routing_id.hex() for member in members},
            dict(keys.num_refused_peers),
            dict(keys.num_dropped_frames),
            client.limit_counters(),
            client.num_without_hello,
            {
                "admitted": client.counters.num_admitted,
                "lost": client.counters.num_lost,
                "malformed": client.counters.num_malformed,
                "late_messages": client.counters.num_late_messages,
                "resumes": sum(client.counters.num_resumes.values()),
            },
            keys.num_zap_restarts,
            sorted(self._stalled),
        )
        self._stalled = set()
        self._tokens = [0] * self._num_streams
        self._gap_s = loop.longest_cpu_s = 0.0
        return report


def break_down(*_: Any) -> Any:
    raise RuntimeError("killed by the test")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    config = json.loads(sys.argv[1])
    if config.get("descriptors"):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (config["descriptors"], hard))
    lines = Lines()
    logging.basicConfig(level=logging.INFO, handlers=[lines, logging.StreamHandler(sys.stderr)])
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(Frontend(config, lines).run())


if __name__ == "__main__":
    main()
