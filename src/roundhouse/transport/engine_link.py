"""`EngineLink`: an engine's side of the mesh, two threads and what they share."""

from __future__ import annotations

import logging
import random as random_module
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import zmq

from roundhouse.clock import Clock, monotonic
from roundhouse.protocol.messages import Hello
from roundhouse.transport.address import FrontendAddress, TcpAddress, parse_address
from roundhouse.transport.engine_input import EngineMail, KeysChanged, Resolved, StopInput, process_input_sockets
from roundhouse.transport.engine_output import process_output_sockets
from roundhouse.transport.engine_security import Security
from roundhouse.transport.items import (
    Backlog,
    BusyLoopStatus,
    ClosePush,
    InputQueue,
    LastWords,
    LinkFailed,
    OpenPush,
    OutputItem,
    Stop,
)
from roundhouse.transport.key_folder import KeyFolder, KeyWatch
from roundhouse.transport.keys import EngineKeys
from roundhouse.transport.mailbox import Mailbox
from roundhouse.transport.reach import check_connect, is_exposed
from roundhouse.transport.resolver import Resolve, Resolver, resolve_host
from roundhouse.transport.sockets import LAST_WORDS_LINGER_MS

logger = logging.getLogger(__name__)

JOIN_S = LAST_WORDS_LINGER_MS / 1000 + 1.0


class EngineLink:
    """Sessions with every frontend of `addresses`, kept up for ever.

    hello: as in `messages.Hello`; its nonce is replaced for each session.
    input_queue gets `InputItem`s; the busy loop puts `OutputItem`s into output_queue and keeps `status` up to date.
    keys: what it proves to frontends by tcp, read again while the link lives. insecure_mesh: allows frontends on other
    machines without.
    backlog: bounds what waits in input_queue, when its consumer calls `Backlog.taken`; None leaves that unbounded.
    Raises `ConfigError` for an address that cannot be meant, or that needs keys.
    """

    def __init__(
        self,
        hello: Hello,
        addresses: Sequence[str],
        input_queue: InputQueue,
        output_queue: SimpleQueue[OutputItem],
        status: BusyLoopStatus,
        *,
        keys: KeyFolder[EngineKeys] | None = None,
        insecure_mesh: bool = False,
        backlog: Backlog | None = None,
        resolve: Resolve = resolve_host,
        random: Callable[[], float] = random_module.random,
        clock: Clock = monotonic,
    ) -> None:
        parsed = [parse_address(address) for address in addresses]
        for address in parsed:
            check_connect(address, has_keys=keys is not None, insecure_mesh=insecure_mesh)
        exposed = ", ".join(str(address) for address in parsed if is_exposed(address))
        security = Security(None, insecure_mesh, exposed) if keys is None else Security(keys.keys)
        names = [address for address in parsed if isinstance(address, TcpAddress) and not address.is_literal]
        static: list[FrontendAddress] = [address for address in parsed if address not in names]
        self._context = zmq.Context()
        self._mailbox: Mailbox[EngineMail] = Mailbox()
        self._output_queue = output_queue
        self._key_watch = None if keys is None else KeyWatch(keys, lambda new: self._mailbox.post(KeysChanged(new)))
        self._resolver = Resolver(names, resolve, lambda name, found: self._mailbox.post(Resolved(name, found)))

        def run_input() -> None:
            process_input_sockets(
                self._context,
                hello,
                static,
                self._mailbox,
                input_queue,
                output_queue,
                security=security,
                backlog=backlog,
                random=random,
                clock=clock,
            )

        def run_output() -> None:
            process_output_sockets(output_queue, self._mailbox, input_queue, status, epoch=hello.epoch, clock=clock)

        def guarded(target: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                try:
                    target()
                except Exception as error:
                    logger.exception("a socket thread failed")
                    input_queue.put(LinkFailed(repr(error)))

            return run

        self.input_thread = threading.Thread(target=guarded(run_input), name="engine input", daemon=True)
        self.output_thread = threading.Thread(target=guarded(run_output), name="engine output", daemon=True)

    def start(self) -> None:
        self.output_thread.start()
        self.input_thread.start()
        self._resolver.start()
        if self._key_watch is not None:
            self._key_watch.start()

    def close(self, last_words: str | None = None) -> None:
        """Sends what stands in the output queue, then `last_words` as ENGINE_CORE_DEAD if given, and takes everything
        down. Takes at most about ten seconds, when a frontend does not read; microseconds as a rule."""
        self._resolver.stop()
        if self._key_watch is not None:
            self._key_watch.stop()
        self._output_queue.put(Stop() if last_words is None else LastWords(last_words))
        # The DEALERs stay until the last output has left: a frontend that sees one go asks no further.
        self.output_thread.join(JOIN_S)
        self._mailbox.post(StopInput())
        self.input_thread.join(JOIN_S)
        if self.output_thread.is_alive() or self.input_thread.is_alive():
            logger.error("a socket thread hangs; leaving it behind")
            return
        self._close_what_nobody_took()
        self._context.term()
        self._mailbox.close()

    def _close_what_nobody_took(self) -> None:
        while not self._output_queue.empty():
            match self._output_queue.get():
                case OpenPush(push=push):
                    push.close()
                case ClosePush(monitor=monitor):
                    monitor.close()
                case _:
                    pass
