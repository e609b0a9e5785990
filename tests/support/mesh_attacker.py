"""An attacker of a frontend's mesh, a process of its own. `mesh_attacker.py NAME CONFIG`.

CONFIG is JSON: {"address": …, "engine": folder of the keys that it has, "session": a session id that it knows,
"routing_id": hex of another engine's}. Each attack is a function below; it ends by itself within a few seconds, and
prints one line of JSON: what it could do.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from roundhouse.protocol.frames import ENGINE_TYPES, FRONTEND_TYPES, FrameDecoder, FrameEncoder
from roundhouse.protocol.identity import EngineIdentity, routing_id
from roundhouse.protocol.messages import (
    Admitted,
    Died,
    Draining,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    Hello,
    Ping,
    Pong,
    SchedulerStats,
    UtilityOutput,
)
from roundhouse.transport import sockets
from roundhouse.transport.address import TcpAddress, parse_address
from roundhouse.transport.key_folder import read_key_files
from roundhouse.transport.keys import Credential, new_pair, parse_engine_keys
from tests.support.mesh import HELLO

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
CURVE_GREETING = SIGNATURE + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
NULL_GREETING = SIGNATURE + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)

CROWD_S = 10.0
"""Of an attack by thousands of connections: a busy machine makes fewer of them."""

Result = dict[str, Any]


class Attacker:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        address = parse_address(config["address"])
        assert isinstance(address, TcpAddress)
        self.address = address
        self.ports = (address.port, address.port + 1)
        self.random = random.Random(1)
        self._context: sockets.Context = zmq.Context()
        self._encoder, self._decoder = FrameEncoder(ENGINE_TYPES), FrameDecoder(FRONTEND_TYPES)

    # Raw connections

    def connect(self, number: int) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports[number % 2]), timeout=5)

    def pour(self, raw: socket.socket, chunk: bytes, most: int, seconds: float) -> int:
        """Sends `chunk` over and over as long as it is let. Bytes that went out."""
        sent, ends_at = 0, time.monotonic() + seconds
        raw.settimeout(0.2)
        while sent < most and time.monotonic() < ends_at:
            try:
                sent += raw.send(chunk)
            except TimeoutError:
                continue
            except OSError:
                break
        return sent

    # Peers with a key

    def open(self, credential: Credential | None, hello: Hello = HELLO) -> None:
        claimed = routing_id(EngineIdentity(hello.identity), hello.nonce)
        self.dealer = sockets.make_dealer(self._context, claimed, credential)
        self.push = sockets.make_push(self._context, credential)
        sockets.connect(self.dealer, self.address.input_endpoint)
        sockets.connect(self.push, self.address.output_endpoint)

    def credential(self) -> Credential:
        return parse_engine_keys(read_key_files(Path(self.config["engine"]))).credentials()[0]

    def hello(self) -> Hello:
        return msgspec.structs.replace(HELLO, identity=Path(self.config["engine"]).name, nonce=os.urandom(16))

    def join(self) -> Admitted:
        hello = self.hello()
        self.open(self.credential(), hello)
        self.greet(hello)
        assert self.dealer.poll(5000), "not admitted"
        admitted = self._decoder.decode(self.dealer.recv_multipart())
        assert isinstance(admitted, Admitted), admitted
        self.stamps = (admitted.session_id, admitted.engine_index, hello.epoch)
        return admitted

    def greet(self, hello: Hello) -> None:
        frames = self._encoder.encode(hello)
        self.send_at_once(self.dealer, [b""])
        self.send_at_once(self.dealer, frames)
        self.send_at_once(self.push, frames)

    @staticmethod
    def send_at_once(to: sockets.Socket, frames: list[Any]) -> None:
        """Or not at all: a connection that is gone takes nothing, for ever."""
        with contextlib.suppress(zmq.Again):
            to.send_multipart(frames, zmq.NOBLOCK)

    def say(self, message: Any) -> None:
        self.send(self._encoder.encode(message))

    def send(self, frames: list[Any]) -> bool:
        """Waits for room for as long as the connection lives, five seconds at most."""
        if not self.push.poll(5000, zmq.POLLOUT):
            return False
        self.push.send_multipart(frames, copy=sum(map(len, frames)) < 65536)
        return True

    def heard(self, seconds: float) -> list[Any]:
        found: list[Any] = []
        ends_at = time.monotonic() + seconds
        while (left_s := ends_at - time.monotonic()) > 0:
            if self.dealer.poll(int(left_s * 1000)):
                found.append(self._decoder.decode(self.dealer.recv_multipart()))
        return found

    def noise(self, longest: int = 2000) -> bytes:
        return self.random.randbytes(self.random.randrange(longest))


def no_key(attacker: Attacker) -> Result:
    """ZeroMQ without any security, many times."""
    for _ in range(100):
        attacker.open(None)
        attacker.send_at_once(attacker.dealer, [b""])
        attacker.send_at_once(attacker.push, [b"x"])
    time.sleep(1)
    return {}


def unknown_key(attacker: Attacker) -> Result:
    """It knows the frontends' public key, and its own is not on the list."""
    known = attacker.credential()
    for _ in range(100):
        attacker.open(Credential(known.generation, known.server_public, new_pair()))
        attacker.send_at_once(attacker.dealer, [b""])
    time.sleep(1.5)
    return {}


def known_key(attacker: Attacker) -> Result:
    """Its key is on the list, and it greets as an engine does."""
    for _ in range(10):
        hello = attacker.hello()
        attacker.open(attacker.credential(), hello)
        attacker.greet(hello)
    return {"heard": len(attacker.heard(2))}


def garbage(attacker: Attacker) -> Result:
    """Random bytes; greetings with random bytes in them; a good greeting and then random frames."""
    ends_at = time.monotonic() + CROWD_S
    for number in range(10_000):
        if time.monotonic() > ends_at:
            break
        try:
            with attacker.connect(number) as raw:
                kind = number % 4
                greeting = bytearray(CURVE_GREETING if kind else b"")
                if kind == 1:
                    greeting[attacker.random.randrange(len(greeting))] = attacker.random.randrange(256)
                raw.sendall(bytes(greeting) + (NULL_GREETING if kind == 2 else b"") + attacker.noise(300))
        except OSError:
            continue
    return {}


def announce_2_gib(attacker: Attacker) -> Result:
    """The header of a frame of 2 GiB."""
    sent = 0
    for number in range(20):
        with attacker.connect(number) as raw:
            raw.sendall(CURVE_GREETING + b"\x06" + struct.pack(">Q", 2**31))
            sent += attacker.pour(raw, bytes(2**20), 2**31, 3)
    return {"sent": sent}


def pour_without_key(attacker: Attacker) -> Result:
    """A frame that is just not too large, by twenty connections; as much of it as they are let."""
    opened = [attacker.connect(number) for number in range(20)]
    for raw in opened:
        raw.sendall(CURVE_GREETING + b"\x06" + struct.pack(">Q", 2**26 - 1))
    sent = sum(attacker.pour(raw, bytes(2**16), 2**26, 3) for raw in opened)
    return {"sent": sent}


def silent_crowd(attacker: Attacker) -> Result:
    """10,000 connections that say nothing."""
    opened: list[socket.socket] = []
    ends_at = time.monotonic() + CROWD_S
    for number in range(10_000):
        if time.monotonic() > ends_at:
            break
        try:
            opened.append(attacker.connect(number))
        except OSError:
            continue
    time.sleep(1)
    return {"connected": len(opened)}


def restless_crowd(attacker: Attacker) -> Result:
    """10,000 connections that are closed at once."""
    ends_at = time.monotonic() + CROWD_S
    for number in range(10_000):
        if time.monotonic() > ends_at:
            break
        with contextlib.suppress(OSError):
            attacker.connect(number).close()
    return {}


def noise_by_key(attacker: Attacker) -> Result:
    """10,000 messages of random frames by an engine's key, after its Hello."""
    attacker.join()
    for number in range(10_000):
        kind = bytes([attacker.random.randrange(8)]) if number % 3 else attacker.noise(20)
        frames = [kind, *(attacker.noise() for _ in range(attacker.random.randrange(4)))]
        to = attacker.push if number % 2 else attacker.dealer
        if to.poll(1000, zmq.POLLOUT):
            attacker.send_at_once(to, frames)
    time.sleep(1)
    return {}


def flood_by_key(attacker: Attacker) -> Result:
    """Small messages of its own session as fast as it can."""
    attacker.join()
    frames = attacker._encoder.encode(Pong(attacker.stamps[0], 10**6, 1, 0, SchedulerStats()))
    ends_at, sent = time.monotonic() + 3, 0
    while time.monotonic() < ends_at and attacker.send([b"\x07", *frames[1:]]):
        sent += 1
    return {"sent": sent}


def slow_payloads(attacker: Attacker) -> Result:
    """What takes long to decode, as large as it may be and larger."""
    attacker.join()
    for count in (2**17 - 200, 2**17 - 200, 2**20, 2**25):
        message = EngineCoreOutputs(*attacker.stamps, 1, [], utility_output=UtilityOutput(1, [[]] * count))
        attacker.say(message)
    many = [EngineCoreOutput("x", 0, 0, [1])] * 8_000
    for number in range(10):
        attacker.say(EngineCoreOutputs(*attacker.stamps, number + 1, many))
    time.sleep(2)
    return {}


def many_slow_connections(attacker: Attacker, seconds: float = 3.0) -> Result:
    """What takes long to decode, by twenty connections of one key, for a session that is not there."""
    attacker.join()
    frames = attacker._encoder.encode(
        EngineCoreOutputs(1, 0, HELLO.epoch, 1, [], utility_output=UtilityOutput(1, [[]] * (2**17 - 200)))
    )
    pushes = [attacker.push]
    for _ in range(20):
        pushes.append(push := sockets.make_push(attacker._context, attacker.credential()))
        sockets.connect(push, attacker.address.output_endpoint)
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        for push in pushes:
            attacker.send_at_once(push, frames)
        time.sleep(0.02)
    return {}


def slow_connections_that_are_revoked(attacker: Attacker) -> Result:
    """The same, for so long that its key is taken off the list meanwhile."""
    return many_slow_connections(attacker, 8.0)


def frame_too_large(attacker: Attacker) -> Result:
    """One frame over the limit of frames, by a key."""
    attacker.join()
    attacker.send([b"\x00", bytes(2**26 + 1)])
    time.sleep(1)
    return {}


def endless_message(attacker: Attacker) -> Result:
    """One message of 10,000 frames of 1 MB, by a key. Its sender has one buffer of them."""
    attacker.join()
    monitor = sockets.monitor(attacker.push, zmq.EVENT_DISCONNECTED)
    frame = memoryview(bytes(2**20))
    for number in range(10_000):
        attacker.push.send(frame, zmq.SNDMORE if number < 9_999 else 0, copy=False)
    return {"was_cut": bool(monitor.poll(20_000))}


def replayed_hellos(attacker: Attacker) -> Result:
    """Its own Hello again and again, and another engine's."""
    hello = attacker.hello()
    attacker.open(attacker.credential(), hello)
    for _ in range(1000):
        attacker.greet(hello)
    other = bytes.fromhex(attacker.config["routing_id"])
    stolen = msgspec.structs.replace(hello, identity=other[:-17].decode(), nonce=other[-16:])
    for _ in range(100):
        attacker.greet(stolen)
    time.sleep(1)
    return {}


def hello_storm(attacker: Attacker) -> Result:
    """New Hellos by one key: whole ones, and halves that have no other."""
    hello = attacker.hello()
    attacker.open(attacker.credential(), hello)
    for _ in range(5000):
        attacker.say(attacker.hello())
    for _ in range(20):
        attacker.open(attacker.credential(), hello := attacker.hello())
        attacker.greet(hello)
    time.sleep(1)
    return {}


def speak_for_another(attacker: Attacker) -> Result:
    """It knows another session's number, and says everything in its name."""
    attacker.join()
    stamps = (attacker.config["session"], 0, HELLO.epoch)
    token = EngineCoreOutput("stream-0", 0, 0, [666])
    for number in range(1000):
        attacker.say(EngineCoreOutputs(*stamps, number, [token]))
        attacker.say(Pong(stamps[0], number, number, number, SchedulerStats()))
        attacker.say(Draining(stamps[0], "forged", 1.0))
        attacker.say(Died(stamps[0], "forged"))
    time.sleep(1)
    return {}


def listen_for_another(attacker: Attacker) -> Result:
    """It takes another engine's routing id, with its own key, and listens."""
    other = bytes.fromhex(attacker.config["routing_id"])
    attacker.open(
        attacker.credential(), msgspec.structs.replace(HELLO, identity=other[:-17].decode(), nonce=other[-16:])
    )
    attacker.greet(attacker.hello())
    return {"heard": len(attacker.heard(2))}


def silent_member(attacker: Attacker) -> Result:
    """It is admitted, and answers nothing: no Ping, no request."""
    attacker.join()
    found = attacker.heard(5)
    return {
        "was_asked": any(isinstance(message, Ping) for message in found),
        "num_requests": sum(isinstance(message, EngineCoreRequest) for message in found),
    }


ATTACKS: dict[str, Callable[[Attacker], Result]] = {
    attack.__name__: attack
    for attack in (
        no_key,
        unknown_key,
        known_key,
        garbage,
        announce_2_gib,
        pour_without_key,
        silent_crowd,
        restless_crowd,
        noise_by_key,
        flood_by_key,
        slow_payloads,
        many_slow_connections,
        slow_connections_that_are_revoked,
        frame_too_large,
        endless_message,
        replayed_hellos,
        hello_storm,
        speak_for_another,
        listen_for_another,
        silent_member,
    )
}


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attacker = Attacker(json.loads(sys.argv[2]))
    result = ATTACKS[sys.argv[1]](attacker)
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    # At once: nobody waits for what was not sent.
    os._exit(0)


if __name__ == "__main__":
    main()
