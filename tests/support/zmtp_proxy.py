"""A TCP proxy between engines and one frontend that understands ZMTP 3.1 (RFC 37), so that a test can lose whole
messages without closing anything, hold them up, silence a connection, cut it and restore it.

On the wire of one direction: a greeting of 64 bytes, then frames of flags, length and body. Frames with MORE and the
one behind them are a message. Commands (READY, PING, PONG) are frames of their own, and pass when messages are lost.

With CURVE the greeting and the handshake look the same, and then each frame is sealed: one of a message, or a PING or
PONG, and which of them cannot be seen. So what is lost there are single frames, and no type can be chosen.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.support.free_ports import free_port_run

GREETING_BYTES = 64
MORE, LONG, COMMAND = 0x01, 0x02, 0x04
READ_BYTES = 65536
NUM_PORTS = 4
START_S = 10.0


@dataclass(frozen=True, slots=True)
class Greeting:
    """A piece of it, as it came: each side sends its signature and waits for the other's before it goes on."""

    wire: bytes


@dataclass(frozen=True, slots=True)
class Frame:
    """wire: the frame as it came, flags and length included."""

    flags: int
    body: bytes
    wire: bytes

    @property
    def has_more(self) -> bool:
        return bool(self.flags & MORE)

    @property
    def is_command(self) -> bool:
        return bool(self.flags & COMMAND)


class ZmtpParser:
    """One direction of one connection. Bytes in any pieces; what is not whole yet waits."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeting_bytes_due = GREETING_BYTES

    def feed(self, data: bytes) -> list[Greeting | Frame]:
        self._buffer += data
        units: list[Greeting | Frame] = []
        while (unit := self._next()) is not None:
            units.append(unit)
        return units

    def _next(self) -> Greeting | Frame | None:
        if self._greeting_bytes_due and self._buffer:
            wire = self._take(min(self._greeting_bytes_due, len(self._buffer)))
            assert wire is not None
            self._greeting_bytes_due -= len(wire)
            return Greeting(wire)
        if len(self._buffer) < 2:
            return None
        flags = self._buffer[0]
        head_bytes = 9 if flags & LONG else 2
        if len(self._buffer) < head_bytes:
            return None
        wire = self._take(head_bytes + int.from_bytes(self._buffer[1:head_bytes], "big"))
        return None if wire is None else Frame(flags, wire[head_bytes:], wire)

    def _take(self, num_bytes: int) -> bytes | None:
        if len(self._buffer) < num_bytes:
            return None
        taken = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        return taken


class Direction(Enum):
    TO_ENGINE = "to the engine"
    TO_FRONTEND = "to the frontend"


class Gate:
    """What becomes of one direction of all connections together. Told by any thread, asked by the proxy's.

    num_dropped: whole messages, since the start.
    """

    def __init__(self) -> None:
        self.num_dropped = 0
        self.delay_s = 0.0
        self.is_silent = False
        self._lock = threading.Lock()
        self._num_to_drop = 0
        self._type_byte: bytes | None = None

    def drop(self, num_messages: int, type_byte: bytes | None = None) -> None:
        """Loses the next messages, or the next whose first frame is `type_byte`. Replaces an earlier order."""
        with self._lock:
            self._num_to_drop = num_messages
            self._type_byte = type_byte

    def passes(self, message: list[bytes]) -> bool:
        """message: the bodies of its frames. One that does not pass is counted."""
        with self._lock:
            if self._num_to_drop == 0 or self._type_byte not in (None, message[0]):
                return True
            self._num_to_drop -= 1
            self.num_dropped += 1
            return False


class Sluice:
    """One direction of one connection: wire bytes in, the wire bytes that go on out."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._parser = ZmtpParser()
        self._message: list[Frame] = []

    def pass_on(self, data: bytes) -> bytes:
        passed: list[bytes] = []
        for unit in self._parser.feed(data):
            if isinstance(unit, Greeting) or unit.is_command:
                passed.append(unit.wire)
                continue
            self._message.append(unit)
            if not unit.has_more:
                if self._gate.passes([frame.body for frame in self._message]):
                    passed += [frame.wire for frame in self._message]
                self._message.clear()
        return b"" if self._gate.is_silent else b"".join(passed)


class ZmtpProxy:
    """Stands for the frontend at `mesh` (tcp://HOST:PORT, outputs on PORT + 1, and the pair above, of which a frontend
    listens on one at least); engines are to use `address`.

    It has a thread of its own and ends with the block. to_engine, to_frontend: the two gates.
    """

    def __init__(self, mesh: str) -> None:
        parts = urlsplit(mesh)
        assert parts.hostname is not None
        assert parts.port is not None
        self._upstream = (parts.hostname, parts.port)
        self._port = free_port_run("127.0.0.1", NUM_PORTS)
        self.address = f"tcp://127.0.0.1:{self._port}"
        self.to_engine = Gate()
        self.to_frontend = Gate()
        self._is_cut = False
        self._transports: set[asyncio.WriteTransport] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zmtp proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def cut(self) -> None:
        """Closes every connection; new ones are closed as they come."""
        self._is_cut = True
        self._tell(self._abort_all)

    def restore(self) -> None:
        """Ends a cut, a silence and a delay. What was lost stays lost."""
        self._is_cut = False
        for gate in (self.to_engine, self.to_frontend):
            gate.is_silent, gate.delay_s = False, 0.0

    def silence(self) -> None:
        """Nothing passes any more, heartbeats included, and nothing is closed: as when a network cable is pulled."""
        self.to_engine.is_silent = self.to_frontend.is_silent = True

    def _tell(self, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        host, port = self._upstream
        servers = [
            self._loop.run_until_complete(
                asyncio.start_server(lambda r, w, to=port + offset: self._accept(r, w, host, to), "127.0.0.1", listen)
            )
            for offset, listen in enumerate(range(self._port, self._port + NUM_PORTS))
        ]
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            for server in servers:
                server.close()
            self._abort_all()
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            # Aborted transports close their sockets in a callback.
            self._loop.run_until_complete(asyncio.sleep(0.01))
            self._loop.close()

    def _abort_all(self) -> None:
        for transport in self._transports:
            transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        task = self._loop.create_task(self._serve(reader, writer, host, port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        transports = [writer.transport]
        self._transports.add(writer.transport)
        try:
            if self._is_cut:
                return
            to_reader, to_writer = await asyncio.open_connection(host, port)
            transports.append(to_writer.transport)
            self._transports.add(to_writer.transport)
            pumps = [
                self._loop.create_task(_pump(reader, to_writer, self.to_frontend)),
                self._loop.create_task(_pump(to_reader, writer, self.to_engine)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            for transport in transports:
                transport.abort()
                self._transports.discard(transport)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: Gate) -> None:
    """Until either end closes."""
    sluice = Sluice(gate)
    while data := await reader.read(READ_BYTES):
        passed = sluice.pass_on(data)
        if gate.delay_s:
            await asyncio.sleep(gate.delay_s)
        writer.write(passed)
        await writer.drain()
