"""Engines and frontends over real sockets, each engine in a process of its own. The busy loop is an echo."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
import zmq

from roundhouse.frontend.live_requests import WaitLimits
from roundhouse.frontend.mp_client import AsyncMPClient
from roundhouse.protocol.errors import (
    ConfigError,
    DuplicateRequestId,
    EngineDeadError,
    EngineGenerateError,
    MessageTooLarge,
    NoEngine,
    ShuttingDown,
)
from roundhouse.protocol.messages import EngineCoreOutput
from roundhouse.protocol.sampling import FinishReason
from tests.support.free_ports import free_port_pair
from tests.support.mesh import request
from tests.support.mesh_engine import pattern, rows

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "tests/support/mesh_engine.py"
FRONTEND = ROOT / "tests/support/mesh_frontend.py"


def is_ipv6_here() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(params=["ipc", "tcp", "tcp6"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_address(request.param, tmp_path)


def new_address(kind: str, tmp_path: Path, name: str = "mesh") -> str:
    match kind:
        case "ipc":
            return f"ipc://{tmp_path}/{name}"
        case "tcp":
            return f"tcp://127.0.0.1:{free_port_pair('127.0.0.1')}"
        case _:
            if not is_ipv6_here():
                pytest.skip("no IPv6 on this machine")
            return f"tcp://[::1]:{free_port_pair('::1')}"


class Processes:
    """What a test started; all of it ends with the test."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[str]] = []

    def engine(self, *frontends: str, identity: str = "engine-0", **config: Any) -> subprocess.Popen[str]:
        text = json.dumps({"frontends": frontends, "identity": identity, **config})
        return self._start([str(ENGINE), text])

    def frontend(self, address: str, count: int, prefix: str) -> subprocess.Popen[str]:
        return self._start([str(FRONTEND), address, str(count), prefix])

    def _start(self, arguments: list[str]) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        process = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
        self._running.append(process)
        return process

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.end()


@asynccontextmanager
async def client_on(address: str, **options: Any) -> AsyncIterator[AsyncMPClient]:
    """A request that no engine can take is refused at once."""
    client = AsyncMPClient(address, wait_limits=WaitLimits(wait_s=0), **options)
    client.start()
    try:
        yield client
    finally:
        client.shutdown()


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> float:
    """Seconds until `condition` holds."""
    started = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition, not one that could set an event
            await asyncio.sleep(0.005)
    return time.monotonic() - started


async def engines_of(client: AsyncMPClient, count: int) -> None:
    await until(lambda: [view.state for view in client.engines()] == ["admitted"] * count)


async def collect(
    client: AsyncMPClient, request_ids: set[str], timeout_s: float = 60.0
) -> dict[str, list[EngineCoreOutput]]:
    """All outputs of `request_ids` until each has ended."""
    found: dict[str, list[EngineCoreOutput]] = {request_id: [] for request_id in request_ids}
    left = set(request_ids)
    async with asyncio.timeout(timeout_s):
        while left:
            for output in (await client.get_output_async()).outputs:
                found[output.request_id].append(output)
                if output.finished:
                    left.discard(output.request_id)
    return found


async def tokens_of(client: AsyncMPClient, request_id: str, prompt: list[int], max_tokens: int) -> list[int]:
    await client.add_request_async(request(request_id, prompt=prompt, max_tokens=max_tokens))
    outputs = (await collect(client, {request_id}))[request_id]
    return [token for output in outputs for token in output.new_token_ids]


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_ten_thousand_outputs_come_in_order(
    address: str, processes: Processes, runner: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def main() -> None:
        async with client_on(address) as client:
            processes.engine(address)
            hello = await client.wait_for_engine()
            assert (hello.identity, hello.model) == ("engine-0", "echo")
            tokens = await tokens_of(client, "r", [1, 2, 3], 10_000)
            assert tokens == [[1, 2, 3][place % 3] for place in range(10_000)]
            assert client.counters.num_malformed == client.counters.num_late_outputs == 0

    runner(main())


def test_two_engines_and_two_frontends(tmp_path: Path, processes: Processes) -> None:
    addresses = [new_address("ipc", tmp_path), new_address("tcp", tmp_path)]

    async def main() -> None:
        async with client_on(addresses[0]) as one, client_on(addresses[1]) as two:
            for number in range(2):
                processes.engine(*addresses, identity=f"engine-{number}")
            for client, name in ((one, "one"), (two, "two")):
                await engines_of(client, 2)
                ids = {f"{name}-{number}" for number in range(200)}
                for request_id in ids:
                    await client.add_request_async(request(request_id, prompt=[ord(name[0])], max_tokens=5))
                shares = [view.num_inflight for view in client.engines()]
                assert sum(shares) == 200
                assert min(shares) > 50
                for outputs in (await collect(client, ids)).values():
                    assert [token for output in outputs for token in output.new_token_ids] == [ord(name[0])] * 5
                assert [view.num_inflight for view in client.engines()] == [0, 0]
            assert await two.call_utility_async("seen") == [["SessionOpened"] * 2] * 2

    asyncio.run(main())


def test_large_arrays_arrive_intact_while_buffers_are_reused(address: str, processes: Processes) -> None:
    async def main() -> None:
        async with client_on(address) as client:
            processes.engine(address)
            await client.wait_for_engine()
            count = 20_000  # three arrays of 160 and 80 KiB in each output
            await client.add_request_async(request("arrays", prompt=[count], max_tokens=60))
            # Payloads over 64 KiB by themselves, encoded into the reused buffers.
            text = list(range(30_000))
            await client.add_request_async(request("plain", prompt=text, max_tokens=300))
            found = await collect(client, {"arrays", "plain"})
            for output in found["arrays"]:
                expected, got = rows(count, output.first_token_index), output.prompt_logprobs
                assert got is not None
                assert np.array_equal(got.token_ids, expected.token_ids)
                assert np.array_equal(got.logprobs, expected.logprobs)
                assert np.array_equal(got.ranks, expected.ranks)
            assert [output.new_token_ids for output in found["plain"]] == [[token] for token in text[:300]]
            for number in range(5):
                length = 100_000 + number
                assert await client.call_utility_async("echo_bytes", length) == [pattern(length)]

    asyncio.run(main())


def test_a_killed_engine_is_noticed_at_once_and_its_requests_move(address: str, processes: Processes) -> None:
    async def main() -> None:
        async with client_on(address) as client:
            engine = processes.engine(address)
            other = processes.engine(address, identity="engine-1")
            await engines_of(client, 2)
            ids = [f"r{number}" for number in range(10)]
            os.kill(engine.pid, signal.SIGSTOP)
            os.kill(other.pid, signal.SIGSTOP)
            for request_id in ids:
                await client.add_request_async(request(request_id, prompt=[7]))
            lost = next(view for view in client.engines() if view.identity == "engine-0").num_inflight
            assert lost == 5
            killed_at = time.monotonic()
            engine.kill()
            await engines_of(client, 1)
            assert time.monotonic() - killed_at < 0.5
            assert client.engines()[0].num_inflight == len(ids)
            os.kill(other.pid, signal.SIGCONT)
            found = await collect(client, set(ids))
            assert [found[name][-1].finish_reason for name in ids] == [FinishReason.LENGTH] * len(ids)
            assert sorted(found[name][-1].attempt for name in ids) == [0] * lost + [1] * lost
            assert [view.identity for view in client.engines()] == ["engine-1"]
            assert (client.counters.num_lost, client.counters.num_requests_lost) == (1, 0)

    asyncio.run(main())


def test_strangers_that_hang_up_together_cost_nobody_a_session(tmp_path: Path, processes: Processes) -> None:
    address = new_address("tcp", tmp_path)
    host, port = address.removeprefix("tcp://").split(":")

    async def main() -> None:
        async with client_on(address) as client:
            processes.engine(address)
            await client.wait_for_engine()
            stream = asyncio.create_task(tokens_of(client, "r", [1, 2, 3], 10_000))
            for _ in range(3):
                strangers = [socket.create_connection((host, int(port))) for _ in range(300)]
                await asyncio.sleep(0.05)
                for stranger in strangers:
                    stranger.close()
                await asyncio.sleep(0.4)
            assert await stream == [[1, 2, 3][place % 3] for place in range(10_000)]
            assert await tokens_of(client, "s", [6], 2) == [6, 6]
            assert (client.counters.num_lost, client.counters.num_admitted) == (0, 1)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_frozen_engine_is_lost_or_stalled_within_three_seconds(
    kind: str, tmp_path: Path, processes: Processes
) -> None:
    address = new_address(kind, tmp_path)

    async def main() -> None:
        async with client_on(address) as client:
            engine = processes.engine(address)
            await client.wait_for_engine()
            os.kill(engine.pid, signal.SIGSTOP)
            seconds = await until(lambda: [view.state for view in client.engines()] != ["admitted"])
            assert seconds < 3.5
            with pytest.raises(NoEngine):
                await client.add_request_async(request("r"))
            os.kill(engine.pid, signal.SIGCONT)
            await engines_of(client, 1)
            assert await tokens_of(client, "r", [4], 2) == [4, 4]

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_a_restarted_frontend_is_used_again_and_gets_nothing_stale(
    kind: str, tmp_path: Path, processes: Processes
) -> None:
    address = new_address(kind, tmp_path)
    engine = processes.engine(address)
    for round_number in range(3):
        frontend = processes.frontend(address, 3, f"round{round_number}-")
        assert frontend.stdout is not None
        lines = [frontend.stdout.readline().strip() for _ in range(4)]
        assert lines == ["ready", "[1, 1, 1]", "[2, 2, 2]", "[3, 3, 3]"]
        frontend.kill()
        frontend.wait()
    assert engine.poll() is None

    async def main() -> None:
        async with client_on(address) as client:
            await client.wait_for_engine()
            assert client.counters.num_late_messages == 0
            seen = ["SessionOpened", "SessionLost"] * 3 + ["SessionOpened"]
            assert await client.call_utility_async("seen") == [seen]

    asyncio.run(main())


def test_a_frontend_that_dies_in_the_middle_of_an_answer_leaves_nothing_for_the_next(
    tmp_path: Path, processes: Processes
) -> None:
    address = new_address("tcp", tmp_path)

    async def main() -> None:
        processes.engine(address)
        async with client_on(address) as client:
            await client.wait_for_engine()
            await client.add_request_async(request("long", prompt=[1], max_tokens=20_000))
            await client.get_output_async()
        async with client_on(address) as client:
            await client.wait_for_engine()
            assert await tokens_of(client, "long", [2], 3) == [2, 2, 2]
            assert client.counters.num_late_messages == client.counters.num_late_outputs == 0

    asyncio.run(main())


def test_an_engine_waits_for_its_frontend_and_the_frontend_for_an_engine(address: str, processes: Processes) -> None:
    async def main() -> None:
        processes.engine(address)
        await asyncio.sleep(0.5)
        async with client_on(address) as client:
            with pytest.raises(NoEngine):
                await client.add_request_async(request("r"))
            await asyncio.wait_for(client.wait_for_engine(), 10)
            assert await tokens_of(client, "r", [4], 2) == [4, 4]

    asyncio.run(main())


def test_an_engine_that_is_terminated_leaves_after_its_last_output(address: str, processes: Processes) -> None:
    async def main() -> None:
        async with client_on(address) as client:
            engine = processes.engine(address)
            await client.wait_for_engine()
            await client.add_request_async(request("r", prompt=[9], max_tokens=2000))
            await client.get_output_async()
            engine.terminate()
            outputs = (await collect(client, {"r"}))["r"]
            assert outputs[-1].finish_reason is FinishReason.LENGTH
            assert await asyncio.to_thread(engine.wait, 10) == 0
            await until(lambda: client.engines() == [])

    asyncio.run(main())


def test_last_words_reach_the_frontend(address: str, processes: Processes) -> None:
    async def main() -> None:
        async with client_on(address) as client:
            engine = processes.engine(address)
            await client.wait_for_engine()
            with pytest.raises(EngineDeadError, match="the engine died: a crash that was asked for"):
                await client.call_utility_async("crash")
            assert await asyncio.to_thread(engine.wait, 10) == 1
            assert client.engines() == []

    asyncio.run(main())


def test_a_draining_engine_gets_nothing_new_and_finishes_what_it_has(address: str, processes: Processes) -> None:
    async def main() -> None:
        async with client_on(address) as client:
            processes.engine(address)
            await client.wait_for_engine()
            await client.add_request_async(request("r", prompt=[9], max_tokens=500))
            await client.call_utility_async("drain")
            assert [view.state for view in client.engines()] == ["draining"]
            with pytest.raises(NoEngine):
                await client.add_request_async(request("s"))
            assert len((await collect(client, {"r"}))["r"]) == 500

    asyncio.run(main())


def test_utilities_fail_by_themselves(address: str, processes: Processes) -> None:
    async def main() -> None:
        async with client_on(address) as client:
            with pytest.raises(NoEngine):
                await client.call_utility_async("seen")
            processes.engine(address)
            await client.wait_for_engine()
            with pytest.raises(EngineGenerateError, match="no unheard_of"):
                await client.call_utility_async("unheard_of")
            with pytest.raises(EngineGenerateError, match="over the peer's limit"):
                await client.call_utility_async("too_big")
            with pytest.raises(NoEngine):
                await client.call_utility_async("seen", engine_index=1)
            assert await client.call_utility_async("seen", engine_index=0) == [["SessionOpened"]]

    asyncio.run(main())


def test_a_request_that_is_refused_here_reaches_no_engine(address: str, processes: Processes) -> None:
    async def main() -> None:
        async with client_on(address) as client:
            processes.engine(address, max_message_bytes=2000)
            await client.wait_for_engine()
            with pytest.raises(MessageTooLarge):
                await client.add_request_async(request("big", prompt=list(range(2000))))
            await client.add_request_async(request("r", prompt=[5], max_tokens=1000))
            with pytest.raises(DuplicateRequestId):
                await client.add_request_async(request("r"))
            await client.abort_requests_async(["r", "big", "unknown"])
            assert client.engines()[0].num_inflight == 0
            assert await tokens_of(client, "s", [6], 2) == [6, 6]

    asyncio.run(main())


def test_a_wrong_model_is_refused_and_a_higher_epoch_fences(tmp_path: Path, processes: Processes) -> None:
    address = new_address("ipc", tmp_path)

    async def main() -> None:
        async with client_on(address, expected_model="echo") as client:
            processes.engine(address, identity="stranger", model="other")
            await until(lambda: client.counters.num_refused >= 1)
            old = processes.engine(address, epoch=[1, 1])
            await engines_of(client, 1)
            new = processes.engine(address, epoch=[2, 1])
            await until(lambda: [view.hello.epoch for view in client.engines()] == [(2, 1)])
            assert await tokens_of(client, "r", [6], 2) == [6, 6]
            new.kill()
            await until(lambda: [view.hello.epoch for view in client.engines()] == [(1, 1)])
            assert old.poll() is None

    asyncio.run(main())


def test_malformed_messages_end_nothing(tmp_path: Path, processes: Processes) -> None:
    address = new_address("ipc", tmp_path)

    async def main() -> None:
        async with client_on(address) as client:
            processes.engine(address)
            await client.wait_for_engine()
            context = zmq.Context()
            dealer, push = context.socket(zmq.DEALER), context.socket(zmq.PUSH)
            dealer.connect(f"{address}/in.sock")
            push.connect(f"{address}/out.sock")
            garbage = [[b""], [b"", b""], [b"\x00", b"\xc1"], [b"\x02", b"\x90"], [b"\xff" * 100, b"x"], [b"\x03"]]
            garbage.append([b"x"] * 100)
            for frames in garbage:
                push.send_multipart(frames)
                dealer.send_multipart(frames)
            # One is no error: it is what an engine registers with.
            await until(lambda: client.counters.num_malformed == 2 * len(garbage) - 1)
            assert await tokens_of(client, "r", [6], 2) == [6, 6]
            assert client.counters.num_lost == 0
            context.destroy(linger=0)

    asyncio.run(main())


def test_one_frontend_by_two_addresses_has_one_session(processes: Processes) -> None:
    port = free_port_pair("127.0.0.1")

    async def main() -> None:
        async with client_on(f"tcp://*:{port}", insecure_mesh=True) as client:
            processes.engine(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.2:{port}")
            await until(lambda: client.counters.num_admitted == 2)
            await asyncio.sleep(2.5)  # more than the back-off of the session that had to go
            assert client.counters.num_admitted == 2
            assert await tokens_of(client, "r", [6], 2) == [6, 6]

    asyncio.run(main())


def test_an_engine_finds_its_frontend_by_name(processes: Processes) -> None:
    port = free_port_pair("127.0.0.1")

    async def main() -> None:
        async with client_on(f"tcp://localhost:{port}") as client:
            processes.engine(f"tcp://localhost:{port}")
            await client.wait_for_engine()
            assert await tokens_of(client, "r", [6], 2) == [6, 6]

    asyncio.run(main())


def test_an_address_that_is_taken_is_one_clear_line(address: str) -> None:
    async def main() -> None:
        async with client_on(address):
            with pytest.raises(ConfigError, match="cannot listen on"):
                AsyncMPClient(address)
        async with client_on(address):
            pass

    asyncio.run(main())


def test_a_second_port_that_is_taken_leaves_the_first_one_free() -> None:
    port = free_port_pair("127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        with pytest.raises(ConfigError, match=f"cannot listen on tcp://127.0.0.1:{port + 1}: Address already in use"):
            AsyncMPClient(f"tcp://127.0.0.1:{port}")
        with socket.socket() as first:
            first.bind(("127.0.0.1", port))


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]", "10.0.0.1"])
def test_others_reach_the_mesh_only_when_that_is_allowed(host: str) -> None:
    with pytest.raises(ConfigError, match="the mesh asks for no key"):
        AsyncMPClient(f"tcp://{host}:{free_port_pair('127.0.0.1')}")


def test_a_wildcard_is_bound_when_allowed(processes: Processes) -> None:
    port = free_port_pair("127.0.0.1")

    async def main() -> None:
        async with client_on(f"tcp://*:{port}", insecure_mesh=True) as client:
            processes.engine(f"tcp://127.0.0.1:{port}")
            await client.wait_for_engine()

    asyncio.run(main())


def test_the_ipc_folder_is_private_and_goes_with_the_frontend(tmp_path: Path) -> None:
    folder = tmp_path / "mesh"

    async def main() -> None:
        async with client_on(f"ipc://{folder}"):
            assert folder.stat().st_mode & 0o777 == 0o700
            assert sorted(path.name for path in folder.iterdir()) == ["in.sock", "lock", "out.sock"]
        assert not folder.exists()
        folder.mkdir(mode=0o755)
        folder.chmod(0o755)
        with pytest.raises(ConfigError, match="must be yours alone"):
            AsyncMPClient(f"ipc://{folder}")

    asyncio.run(main())


def test_a_client_that_is_closed_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        client = AsyncMPClient(new_address("ipc", tmp_path))
        waiting: list[Awaitable[Any]] = [
            asyncio.create_task(client.get_output_async()),
            asyncio.create_task(client.wait_for_engine()),
        ]
        await asyncio.sleep(0.05)
        client.shutdown()
        client.shutdown()
        for task in waiting:
            with pytest.raises(ShuttingDown):
                await task
        with pytest.raises(ShuttingDown):
            await client.add_request_async(request("r"))

    asyncio.run(main())
