"""The closed mesh: keys on real sockets, engines in processes of their own, and peers that are crafted by hand."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from roundhouse.cli.key_store import KeyStore
from roundhouse.frontend.live_requests import WaitLimits
from roundhouse.frontend.loss import LossCause
from roundhouse.frontend.mp_client import AsyncMPClient
from roundhouse.protocol.frames import ENGINE_TYPES, FRONTEND_TYPES, FrameDecoder, FrameEncoder
from roundhouse.protocol.identity import EngineIdentity, routing_id
from roundhouse.protocol.messages import (
    Admitted,
    Died,
    Draining,
    EngineCoreOutput,
    EngineCoreOutputs,
    Ping,
    Pong,
    Refused,
    SchedulerStats,
)
from roundhouse.protocol.sampling import FinishReason
from roundhouse.transport import sockets
from roundhouse.transport.address import parse_address
from roundhouse.transport.key_folder import KeyFolder, read_key_files
from roundhouse.transport.keys import Credential, new_pair, parse_engine_keys, parse_frontend_keys
from tests.support.free_ports import free_port_run
from tests.support.mesh import HELLO, request

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "tests/support/mesh_engine.py"


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys")
    store.create(["engine-0", "engine-1"])
    return store


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{free_port_run('127.0.0.1', 4)}"


class Engines:
    """Processes that echo; all of them end with the test. Each one's log is in `folder`."""

    def __init__(self, folder: Path, store: KeyStore) -> None:
        self._folder = folder
        self._store = store
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, address: str, identity: str = "engine-0", **config: Any) -> subprocess.Popen[bytes]:
        config = {"frontends": [address], "identity": identity, "keys": str(self._store.engine(identity)), **config}
        config = {name: value for name, value in config.items() if value is not None}
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with (self._folder / f"{identity}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, str(ENGINE), json.dumps(config)], env=environment, stderr=log)
        self._running.append(process)
        return process

    def log(self, identity: str = "engine-0") -> str:
        return (self._folder / f"{identity}.log").read_text()

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def engines(tmp_path: Path, store: KeyStore) -> Iterator[Engines]:
    engines = Engines(tmp_path, store)
    yield engines
    engines.end()


@asynccontextmanager
async def client_on(address: str, store: KeyStore, **options: Any) -> AsyncIterator[AsyncMPClient]:
    keys = KeyFolder(store.frontends, parse_frontend_keys)
    client = AsyncMPClient(address, keys=keys, wait_limits=WaitLimits(wait_s=20, resume_s=20), **options)
    client.start()
    try:
        yield client
    finally:
        client.shutdown()


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition, not one that could set an event
            await asyncio.sleep(0.005)


async def stays(condition: Callable[[], bool], seconds: float) -> None:
    """`condition` holds all the time."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    while loop.time() < ends_at:
        assert condition()
        await asyncio.sleep(0.02)


def states(client: AsyncMPClient) -> list[tuple[str, str]]:
    return [(view.identity, view.state) for view in client.engines()]


def sessions(client: AsyncMPClient) -> list[tuple[str, int, int]]:
    """Of each engine: the server key of the present one, and how many there are."""
    return [(view.identity, view.server_key, view.num_sessions) for view in client.engines()]


async def stream(client: AsyncMPClient, request_id: str, count: int) -> list[EngineCoreOutput]:
    """The outputs of one request of `count` tokens, from its ADD to its end."""
    await client.add_request_async(request(request_id, prompt=list(range(1, 100)), max_tokens=count))
    outputs: list[EngineCoreOutput] = []
    async with asyncio.timeout(60):
        while not (outputs and outputs[-1].finished):
            outputs += (await client.get_output_async()).outputs
    return outputs


def check_whole(outputs: list[EngineCoreOutput], count: int) -> None:
    """Every token, once, in order, to a good end."""
    assert [token for output in outputs for token in output.new_token_ids] == [place % 99 + 1 for place in range(count)]
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_engines_with_keys_are_admitted_and_serve(address: str, store: KeyStore, engines: Engines) -> None:
    async def main() -> None:
        async with client_on(address, store) as client:
            engines.start(address)
            await client.wait_for_engine()
            check_whole(await stream(client, "r", 1900), 1900)
            assert client.key_counters().num_refused_peers == {
                "key": 0,
                "handshake": 0,
                "revoked": 0,
                "identity": 0,
                "epoch": 0,
            }
            assert client.key_counters().num_dropped_frames == {"user_id": 0, "revoked": 0}

    asyncio.run(main())


def test_a_key_that_is_not_allowed_is_refused_until_it_is(address: str, store: KeyStore, engines: Engines) -> None:
    allowed = store.frontends / "allowed.json"
    text = allowed.read_text()
    allowed.write_text('{"engines": {}}')

    async def main() -> None:
        async with client_on(address, store) as client:
            engines.start(address)
            await until(lambda: client.key_counters().num_refused_peers["key"] > 0)
            await until(lambda: "is not allowed there; it is tried again" in engines.log())
            assert states(client) == []
            allowed.write_text(text)
            await until(lambda: states(client) == [("engine-0", "admitted")])
            check_whole(await stream(client, "r", 3), 3)

    asyncio.run(main())


def test_an_engine_without_keys_and_one_with_another_servers_key_stay_outside(
    address: str, store: KeyStore, engines: Engines
) -> None:
    name = store.engine("engine-1") / "server-1.pub"
    name.write_text(new_pair().public)

    async def main() -> None:
        async with client_on(address, store) as client:
            engines.start(address, keys=None)
            await until(lambda: "this engine has no keys (--mesh-keys)" in engines.log())
            engines.start(address, "engine-1")
            await until(lambda: "server-1.pub is not that frontend's key" in engines.log("engine-1"))
            assert states(client) == []
            assert client.key_counters().num_refused_peers["handshake"] > 1

    asyncio.run(main())


class Crafted:
    """A peer with the keys of one engine that may say whatever it likes by DEALER and by PUSH."""

    def __init__(self, address: str, store: KeyStore, identity: str = "engine-0") -> None:
        keys = parse_engine_keys(read_key_files(store.engine(identity)))
        self.credential = keys.credentials()[0]
        self._address = address
        self._context: sockets.Context = zmq.Context()
        self._encoder, self._decoder = FrameEncoder(ENGINE_TYPES), FrameDecoder(FRONTEND_TYPES)
        self.hello = msgspec.structs.replace(HELLO, identity=identity, nonce=os.urandom(16))
        self.admitted: Admitted | None = None

    def connect(self, credential: Credential | None = None, *, push_credential: Credential | None = None) -> None:
        there = parse_address(self._address)
        claimed = routing_id(EngineIdentity(self.hello.identity), self.hello.nonce)
        credential = credential or self.credential
        self.dealer = sockets.make_dealer(self._context, claimed, credential)
        self.push = sockets.make_push(self._context, push_credential or credential)
        sockets.connect(self.dealer, there.input_endpoint)
        sockets.connect(self.push, there.output_endpoint)

    def greet(self) -> None:
        self.dealer.send(b"")
        self.dealer.send_multipart(self._encoder.encode(self.hello))
        self.say(self.hello)

    def say(self, message: Any) -> None:
        self.push.send_multipart(self._encoder.encode(message))

    async def heard(self) -> Any:
        """The next message that is no Ping."""
        async with asyncio.timeout(10):
            while True:
                while not self.dealer.poll(0):  # noqa: ASYNC110 - a socket, which sets no event
                    await asyncio.sleep(0.01)
                message = self._decoder.decode(self.dealer.recv_multipart())
                if not isinstance(message, Ping):
                    return message

    def hears_nothing(self) -> bool:
        return not self.dealer.poll(0)

    async def join(self) -> Admitted:
        self.connect()
        self.greet()
        admitted = await self.heard()
        assert isinstance(admitted, Admitted)
        return admitted

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def crafted(address: str, store: KeyStore) -> Iterator[Callable[..., Crafted]]:
    made: list[Crafted] = []

    def make(identity: str = "engine-0") -> Crafted:
        made.append(Crafted(address, store, identity))
        return made[-1]

    yield make
    for one in made:
        one.close()


Craft = Callable[..., Crafted]


def test_a_key_lets_in_no_other_identity(address: str, store: KeyStore, crafted: Craft) -> None:
    async def main() -> None:
        async with client_on(address, store) as client:
            thief = crafted("engine-1")
            thief.hello = msgspec.structs.replace(thief.hello, identity="engine-0")
            thief.connect()
            thief.greet()
            refused = await thief.heard()
            assert refused == Refused("identity", "that key is engine engine-1's, not engine-0's")
            await until(lambda: client.key_counters().num_refused_peers["identity"] == 2)
            assert client.engines() == []

    asyncio.run(main())


def test_two_halves_by_two_keys_are_no_greeting(address: str, store: KeyStore, crafted: Craft) -> None:
    old = parse_engine_keys(read_key_files(store.engine("engine-0"))).credentials()[0]
    store.rotate_engine("engine-0")

    async def main() -> None:
        async with client_on(address, store) as client:
            peer = crafted()
            peer.connect(push_credential=old)
            peer.greet()
            halves = client._engines._halves._halves
            await until(lambda: len(halves) == 2)
            assert (client.engines(), {hello.nonce for hello in (half.hello for half in halves.values())}) == (
                [],
                {peer.hello.nonce},
            )
            assert client.key_counters().num_refused_peers["identity"] == 0
            # By one key they are a greeting.
            admitted = await crafted().join()
            assert [member.session_id for member in client._engines.members()] == [admitted.session_id]
            assert len(halves) == 2
            assert peer.hears_nothing()

    asyncio.run(main())


def test_a_key_for_one_epoch_lets_in_no_other(address: str, store: KeyStore, crafted: Craft) -> None:
    store.revoke("engine-1")
    store.add("engine-1", epoch=7)

    async def main() -> None:
        async with client_on(address, store) as client:
            old, new = crafted("engine-1"), crafted("engine-1")
            old.hello = msgspec.structs.replace(old.hello, epoch=(6, 1))
            new.hello = msgspec.structs.replace(new.hello, epoch=(7, 1))
            old.connect()
            old.greet()
            assert await old.heard() == Refused("epoch", "that key is for epoch 7, not 6")
            await new.join()
            assert states(client) == [("engine-1", "admitted")]

    asyncio.run(main())


def test_nobody_speaks_for_anothers_session(address: str, store: KeyStore, crafted: Craft) -> None:
    """It knows the session's number, which nobody can guess, and still gets nowhere."""

    async def main() -> None:
        async with client_on(address, store) as client:
            victim, thief = crafted("engine-0"), crafted("engine-1")
            admitted = await victim.join()
            await thief.join()
            await client.add_request_async(request("r", data_parallel_rank=admitted.engine_index))
            token = EngineCoreOutput("r", 0, 0, [666], finish_reason=FinishReason.LENGTH)
            stamps = (admitted.session_id, admitted.engine_index, victim.hello.epoch, 1)
            forged = [
                EngineCoreOutputs(*stamps, [token]),
                Pong(admitted.session_id, 1, 1, 0, SchedulerStats()),
                Draining(admitted.session_id, "forged", 1.0),
                Died(admitted.session_id, "forged"),
            ]
            for message in forged:
                thief.say(message)
            await until(lambda: client.key_counters().num_dropped_frames["user_id"] == len(forged))
            assert dict(states(client)) == {"engine-0": "admitted", "engine-1": "admitted"}
            victim.say(EngineCoreOutputs(*stamps, [msgspec.structs.replace(token, new_token_ids=[1])]))
            (output,) = (await client.get_output_async()).outputs
            assert output.new_token_ids == [1]

    asyncio.run(main())


def test_a_replayed_hello_by_another_key_does_nothing(address: str, store: KeyStore, crafted: Craft) -> None:
    async def main() -> None:
        async with client_on(address, store) as client:
            victim, thief = crafted("engine-0"), crafted("engine-1")
            await victim.join()
            thief.hello = victim.hello
            thief.connect()
            thief.greet()
            await until(lambda: client.key_counters().num_refused_peers["identity"] >= 1)
            await stays(lambda: states(client) == [("engine-0", "admitted")], 0.5)
            assert client.counters.num_lost == 0

    asyncio.run(main())


def test_a_dead_key_handler_lets_nobody_in_and_is_started_again(
    address: str, store: KeyStore, crafted: Craft, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: Any) -> Any:
        raise RuntimeError("killed by the test")

    async def main() -> None:
        async with client_on(address, store) as client:
            zap = client.link._zap
            assert zap is not None
            first = crafted()
            await first.join()
            with monkeypatch.context() as patch:
                patch.setattr("roundhouse.transport.zap.answer", break_down)
                patch.setattr(zap, "watch", lambda: None)
                crafted("engine-1").connect()
                await until(lambda: not zap.is_alive)
                late = crafted("engine-1")
                late.connect()
                late.greet()
                # The server is not asked for long; that the session from before lives on shows that it reads.
                await stays(lambda: dict(states(client)) == {"engine-0": "admitted"}, 1.5)
                assert client.key_counters().num_refused_peers["handshake"] > 0
            await until(lambda: zap.is_alive)
            await crafted("engine-1").join()
            assert client.key_counters().num_zap_restarts == 1

    asyncio.run(main())


def test_a_revoked_keys_streams_move_and_its_frames_are_dropped(
    address: str, store: KeyStore, engines: Engines, crafted: Craft
) -> None:
    async def main() -> None:
        async with client_on(address, store) as client:
            revoked = crafted("engine-1")
            admitted = await revoked.join()
            started = asyncio.create_task(stream(client, "r", 50))
            request_ = await revoked.heard()
            assert request_.request_id == "r"
            stamps = (admitted.session_id, admitted.engine_index, revoked.hello.epoch)
            revoked.say(EngineCoreOutputs(*stamps, 1, [EngineCoreOutput("r", 0, 0, [1])]))
            await until(lambda: client.engines()[0].num_inflight == 1)
            store.revoke("engine-1")
            await until(lambda: states(client) == [])
            while revoked.dealer.poll(0):
                revoked.dealer.recv_multipart()
            engines.start(address)
            check_whole(await started, 50)
            await stays(revoked.hears_nothing, 1.2)
            assert client.limit_counters()["revoked"] == 2
            assert client.counters.num_resumes[LossCause.REVOKED] == 1

    asyncio.run(main())


def test_one_of_two_keys_is_revoked_and_the_other_stays(address: str, store: KeyStore, crafted: Craft) -> None:
    old, older_key = crafted(), parse_engine_keys(read_key_files(store.engine("engine-0"))).client.public

    async def main() -> None:
        async with client_on(address, store) as client:
            await old.join()
            store.rotate_engine("engine-0")
            new = crafted()
            new.hello = msgspec.structs.replace(new.hello, epoch=(1, 2))
            await asyncio.sleep(1.5)
            await new.join()
            store.revoke("engine-0", older_key)
            await asyncio.sleep(1.5)
            assert states(client) == [("engine-0", "admitted")]
            assert client.engines()[0].hello.epoch == (1, 2)
            await until(lambda: client.limit_counters()["revoked"] == 2)

    asyncio.run(main())


def test_a_broken_list_leaves_the_last_good_one_in_force(address: str, store: KeyStore, engines: Engines) -> None:
    async def main() -> None:
        async with client_on(address, store) as client:
            (store.frontends / "allowed.json").write_text('{"engines": ')
            await until(lambda: client.key_counters().num_reload_failures == 1)
            engines.start(address)
            await until(lambda: states(client) == [("engine-0", "admitted")])
            await asyncio.sleep(1.5)
            assert client.key_counters().num_reload_failures == 1

    asyncio.run(main())


def test_the_server_key_is_rotated_under_a_stream(address: str, store: KeyStore, engines: Engines) -> None:
    async def main() -> None:
        async with client_on(address, store) as client:
            engines.start(address, delay_s=0.02)
            await client.wait_for_engine()
            before = asyncio.create_task(stream(client, "before", 250))
            await until(lambda: client.engines()[0].num_inflight == 1)
            assert store.rotate_server() == 2
            await until(lambda: sessions(client) == [("engine-0", 2, 2)])
            assert client.link.generations == [1, 2]
            # The old session finishes what it has, and then it goes.
            check_whole(await before, 250)
            await until(lambda: sessions(client) == [("engine-0", 2, 1)])
            assert sum(client.counters.num_resumes.values()) == 0
            after = asyncio.create_task(stream(client, "after", 100))
            await until(lambda: client.engines()[0].num_inflight == 1)
            assert store.retire_server() == 1
            await until(lambda: client.link.generations == [2])
            check_whole(await after, 100)
            assert (sum(client.counters.num_resumes.values()), client.counters.num_lost) == (0, 0)
            # And back to the first pair of ports.
            assert store.rotate_server() == 3
            await until(lambda: sessions(client) == [("engine-0", 3, 1)])
            assert store.retire_server() == 2
            await until(lambda: client.link.generations == [3])
            await until(lambda: states(client) == [("engine-0", "admitted")])

    asyncio.run(main())


def test_a_stream_survives_a_server_key_that_goes_too_early(address: str, store: KeyStore, engines: Engines) -> None:
    async def main() -> None:
        async with client_on(address, store) as client:
            engines.start(address, delay_s=0.02)
            await client.wait_for_engine()
            running = asyncio.create_task(stream(client, "r", 300))
            await until(lambda: client.engines()[0].num_inflight == 1)
            store.rotate_server()
            await until(lambda: sessions(client) == [("engine-0", 2, 2)])
            store.retire_server()
            check_whole(await running, 300)
            # By the frontend or by the engine, whichever looked at its folder first.
            assert sum(client.counters.num_resumes.values()) == 1

    asyncio.run(main())


def test_a_server_key_is_replaced_under_its_own_number(address: str, store: KeyStore, engines: Engines) -> None:
    """As when all keys are made anew because one leaked: who has the old one is out at once."""
    old = store.read().servers[1]

    async def main() -> None:
        async with client_on(address, store) as client:
            engines.start(address, delay_s=0.02)
            await client.wait_for_engine()
            running = asyncio.create_task(stream(client, "r", 200))
            await until(lambda: client.engines()[0].num_inflight == 1)
            before = client.engines()[0].hello.nonce
            new = new_pair()
            store._write(store.frontends / "server-1.key", new.secret, replace=True)
            await until(lambda: states(client) == [])
            await until(lambda: client.link.generations == [1])
            assert client.link._pairs[1].server == new != old
            store._write(store.engine("engine-0") / "server-1.pub", new.public, replace=True)
            check_whole(await running, 200)
            assert client.engines()[0].hello.nonce != before
            assert sum(client.counters.num_resumes.values()) == 1

    asyncio.run(main())


def test_an_engine_leaves_who_has_a_server_key_that_was_taken_away(
    address: str, store: KeyStore, engines: Engines
) -> None:
    """The thief of a server key keeps its port and its list of engines, and its folder never changes."""
    thief = KeyStore(store.folder.parent / "stolen")
    shutil.copytree(store.folder, thief.folder)

    async def main() -> None:
        async with client_on(address, thief) as client:
            engines.start(address)
            await client.wait_for_engine()
            store.rotate_server()
            await stays(lambda: sessions(client) == [("engine-0", 1, 1)], 1.5)
            store.retire_server()
            await until(lambda: sessions(client) == [])
            await until(lambda: "its server key was taken away" in engines.log())
            await stays(lambda: sessions(client) == [], 1.5)

    asyncio.run(main())


def test_a_client_key_is_rotated_under_a_stream(address: str, store: KeyStore, engines: Engines) -> None:
    async def main() -> None:
        async with client_on(address, store) as client:
            engine = engines.start(address, delay_s=0.02)
            await client.wait_for_engine()
            running = asyncio.create_task(stream(client, "r", 250))
            await until(lambda: client.engines()[0].num_inflight == 1)
            store.rotate_engine("engine-0")
            await until(lambda: sessions(client) == [("engine-0", 1, 2)])
            check_whole(await running, 250)
            await until(lambda: sessions(client) == [("engine-0", 1, 1)])
            assert [grant.identity for grant in store.retire_engine("engine-0")] == ["engine-0"]
            await stays(lambda: states(client) == [("engine-0", "admitted")], 1.5)
            check_whole(await stream(client, "s", 3), 3)
            assert (sum(client.counters.num_resumes.values()), client.counters.num_lost) == (0, 0)
            assert engine.poll() is None

    asyncio.run(main())
