"""`ZapHandler`: answers libzmq's question, for each connection to a frontend, whether its key may come in (RFC 27/ZAP).

It is bound before any socket of the context is, and each of them has ZAP_ENFORCE_DOMAIN: while nobody answers, nobody
comes in. Without that option libzmq lets everybody with the server's public key in when there is no handler (measured).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import MappingProxyType

import zmq
from zmq.utils import z85

from roundhouse.clock import Clock
from roundhouse.transport.keys import Grant, fingerprint
from roundhouse.transport.mailbox import Mailbox
from roundhouse.transport.sockets import ZAP_DOMAIN, Context, Socket
from roundhouse.transport.told import Told

ENDPOINT = "inproc://zeromq.zap.01"
VERSION = b"1.0"
JOIN_S = 5.0

logger = logging.getLogger(__name__)


def answer(frames: list[bytes], grants: Mapping[str, Grant]) -> tuple[list[bytes], str | None]:
    """The reply to one request, and the public key that was refused if one was.

    frames: [routing id, empty, version, request id, domain, address, identity, mechanism, credential …].
    Whatever is not a CURVE key of `grants` gets 400: a request of a shape that is not known is refused too.
    """
    routing_id, request_id = frames[0], frames[3] if len(frames) > 3 else b""
    public, grant = None, None
    if len(frames) == 9 and frames[2] == VERSION and frames[4] == ZAP_DOMAIN and frames[7] == b"CURVE":
        public = z85.encode(frames[8]).decode() if len(frames[8]) == 32 else None
        grant = None if public is None else grants.get(public)
    code, text, user_id = (b"400", b"not allowed", b"") if grant is None else (b"200", b"OK", grant.user_id.encode())
    reply = [routing_id, b"", VERSION, request_id, code, text, user_id, b""]
    return reply, None if grant is not None else (public or "")


class ZapHandler:
    """One for a context; answers in a thread of its own from the start on.

    num_refused and num_restarts may be read from anywhere.
    """

    def __init__(self, context: Context, grants: Mapping[str, Grant], clock: Clock) -> None:
        self.num_refused = 0
        self.num_restarts = 0
        self._context = context
        self._clock = clock
        self._grants: Mapping[str, Grant] = MappingProxyType(dict(grants))
        self._told = Told()
        self._mailbox: Mailbox[None] = Mailbox()
        self._thread = self._started()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def allow(self, grants: Mapping[str, Grant]) -> None:
        """For connections from here on; those that there are stay as they are."""
        self._grants = MappingProxyType(dict(grants))

    def watch(self) -> None:
        """Starts it again when it has died. To be called every second or so."""
        if self._thread.is_alive():
            return
        logger.error("the handler of the mesh's keys has died: nobody could connect; it is started again")
        self.num_restarts += 1
        try:
            self._thread = self._started()
        except zmq.ZMQError as error:
            logger.error("the handler of the mesh's keys cannot be started: %s", error)

    def close(self) -> None:
        self._mailbox.post(None)
        self._thread.join(JOIN_S)
        self._mailbox.close()

    def _started(self) -> threading.Thread:
        socket: Socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.bind(ENDPOINT)
        except zmq.ZMQError:
            socket.close()
            raise
        thread = threading.Thread(target=self._run, args=(socket,), name="zap", daemon=True)
        thread.start()
        return thread

    def _run(self, socket: Socket) -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._mailbox.fileno(), zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._mailbox.fileno() in ready:
                    return
                if socket in ready:
                    self._answer_one(socket)
        except Exception:
            logger.exception("the handler of the mesh's keys failed")
        finally:
            # Said first: a socket that is closed keeps its endpoint for a moment, and the next one needs it.
            socket.unbind(ENDPOINT)
            socket.close()

    def _answer_one(self, socket: Socket) -> None:
        frames = socket.recv_multipart()
        reply, refused = answer(frames, self._grants)
        if refused is not None:
            self.num_refused += 1
            address = frames[5].decode(errors="replace") if len(frames) > 5 else "?"
            # By the address alone: a key costs nothing to make.
            if self._told.is_due(address, self._clock()):
                known = f"with the key {fingerprint(refused)}" if refused else "without a key"
                logger.warning("refused a peer at %s %s: it is not allowed", address, known)
        socket.send_multipart(reply)
