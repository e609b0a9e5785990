"""`process_output_sockets`, the engine's output thread: sends what the busy loop made, by the session it belongs to.

Payloads are encoded into reused buffers. A large one is sent without a copy, and then the buffer, and the outputs whose
arrays are on the way, rest in `pending` until ZMQ is done with them.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue

import msgspec
import zmq

from roundhouse.clock import Clock
from roundhouse.protocol.errors import MessageTooLarge
from roundhouse.protocol.frames import ENGINE_TYPES, EngineMessage, FrameEncoder, size_of
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.limits import MAX_BYTES_WAITING_PER_PEER, MAX_OUTPUT_PAYLOAD_BYTES
from roundhouse.protocol.messages import (
    AbortRequests,
    Admitted,
    Died,
    Draining,
    EngineCoreOutput,
    EngineCoreOutputs,
    OutputError,
    Pong,
)
from roundhouse.protocol.sampling import FinishReason
from roundhouse.transport import sockets
from roundhouse.transport.engine_input import EngineMail, PushBroken
from roundhouse.transport.items import (
    BusyLoopStatus,
    ClosePush,
    Drain,
    InputQueue,
    LastWords,
    OpenPush,
    OutputItem,
    Outputs,
    PongDue,
    Received,
    Stop,
)
from roundhouse.transport.mailbox import Mailbox
from roundhouse.transport.sockets import LAST_WORDS_LINGER_MS, Socket

logger = logging.getLogger(__name__)

FIRST_BUFFER_BYTES = 16 * 1024
MAX_SPARE_BUFFERS = 4
MAX_SPARE_BUFFER_BYTES = 2**20
"""One huge message shall not pin its memory for ever."""


@dataclass(slots=True)
class _Pending:
    """Sent and not yet done. `outputs` and `buffer` are here to stay alive."""

    tracker: zmq.MessageTracker
    nbytes: int
    outputs: EngineMessage
    buffer: bytearray


@dataclass(slots=True)
class _OpenSession:
    client_index: ClientIndex
    push: Socket
    admitted: Admitted
    output_number: int = 0
    pending: deque[_Pending] = field(default_factory=deque)
    pending_bytes: int = 0


def process_output_sockets(
    output_queue: SimpleQueue[OutputItem],
    mailbox: Mailbox[EngineMail],
    input_queue: InputQueue,
    status: BusyLoopStatus,
    *,
    epoch: tuple[int, int],
    clock: Clock,
) -> None:
    """Runs until `Stop` or `LastWords`. The sockets linger then, so the caller has to terminate their context."""
    thread = _OutputThread(output_queue, mailbox, input_queue, status, epoch, clock)
    try:
        thread.run()
    finally:
        thread.close()


class _OutputThread:
    def __init__(
        self,
        output_queue: SimpleQueue[OutputItem],
        mailbox: Mailbox[EngineMail],
        input_queue: InputQueue,
        status: BusyLoopStatus,
        epoch: tuple[int, int],
        clock: Clock,
    ) -> None:
        self._output_queue = output_queue
        self._mailbox = mailbox
        self._input_queue = input_queue
        self._status = status
        self._epoch = epoch
        self._clock = clock
        self._sessions: dict[ClientIndex, _OpenSession] = {}
        self._encoder = FrameEncoder(ENGINE_TYPES, max_payload_bytes=MAX_OUTPUT_PAYLOAD_BYTES)
        self._spare_buffers: list[bytearray] = []
        self._drain: Drain | None = None

    def run(self) -> None:
        while True:
            match self._output_queue.get():
                case Outputs(client_index, outputs):
                    session = self._sessions.get(client_index)
                    if session is not None:
                        self._send_outputs(session, outputs)
                case PongDue(client_index, ping_number, last_control_number):
                    session = self._sessions.get(client_index)
                    if session is not None:
                        self._send_pong(session, ping_number, last_control_number)
                case OpenPush(client_index, push, admitted):
                    session = self._sessions[client_index] = _OpenSession(client_index, push, admitted)
                    if self._drain is not None:
                        self._send_draining(session, self._drain)
                case ClosePush(client_index, monitor):
                    session = self._sessions.pop(client_index, None)
                    if session is not None:
                        self._close_push(session.push)
                    monitor.close()
                case Drain() as drain:
                    self._drain = drain
                    for session in list(self._sessions.values()):
                        self._send_draining(session, drain)
                case LastWords(message):
                    for session in list(self._sessions.values()):
                        self._send(session, Died(session.admitted.session_id, message))
                    return
                case Stop():
                    return

    def close(self) -> None:
        for session in self._sessions.values():
            self._close_push(session.push, linger_ms=LAST_WORDS_LINGER_MS)
        self._sessions.clear()

    def _send_pong(self, session: _OpenSession, ping_number: int, last_control_number: int) -> None:
        load, step_s = self._status.load, self._status.step_s(self._clock())
        numbers = (session.admitted.session_id, ping_number, last_control_number, session.output_number)
        self._send(session, Pong(*numbers, load, step_s))

    def _send_draining(self, session: _OpenSession, drain: Drain) -> None:
        self._send(session, Draining(session.admitted.session_id, drain.reason, drain.leaves_in_s))

    def _send_outputs(self, session: _OpenSession, outputs: EngineCoreOutputs) -> None:
        """What cannot be encoded or is too large ends its request alone, in both peers."""
        try:
            self._send_stamped(session, outputs)
        except (MessageTooLarge, TypeError, ValueError, OverflowError) as error:
            if len(outputs.outputs) > 1:
                self._send_outputs(session, msgspec.structs.replace(outputs, outputs=[]))
                self._send_halves(session, outputs)
            elif outputs.outputs:
                self._fail_request(session, outputs, error)
            elif outputs.utility_output is not None:
                failure = msgspec.structs.replace(outputs.utility_output, result=None, failure_message=str(error))
                self._send_stamped(session, msgspec.structs.replace(outputs, utility_output=failure))
            else:
                raise

    def _send_halves(self, session: _OpenSession, outputs: EngineCoreOutputs) -> None:
        middle = len(outputs.outputs) // 2
        for part in (outputs.outputs[:middle], outputs.outputs[middle:]):
            half = EngineCoreOutputs(outputs=part, timestamp=outputs.timestamp)
            try:
                self._send_stamped(session, half)
            except (MessageTooLarge, TypeError, ValueError, OverflowError) as error:
                if len(part) > 1:
                    self._send_halves(session, half)
                else:
                    self._fail_request(session, half, error)

    def _fail_request(self, session: _OpenSession, outputs: EngineCoreOutputs, error: Exception) -> None:
        output = outputs.outputs[0]
        logger.warning("the output of request %s cannot be sent: %s", output.request_id, error)
        code = error.code if isinstance(error, MessageTooLarge) else "internal_error"
        failed = EngineCoreOutput(
            output.request_id,
            output.attempt,
            output.first_token_index,
            [],
            finish_reason=FinishReason.ERROR,
            error=OutputError(code, str(error)),
        )
        self._send_stamped(session, msgspec.structs.replace(outputs, outputs=[failed]))
        if not output.finished:
            self._input_queue.put(Received(session.client_index, AbortRequests([output.request_id])))

    def _send_stamped(self, session: _OpenSession, outputs: EngineCoreOutputs) -> None:
        stamped = msgspec.structs.replace(
            outputs,
            session_id=session.admitted.session_id,
            engine_index=session.admitted.engine_index,
            epoch=self._epoch,
            sequence_number=session.output_number + 1,
        )
        self._send(session, stamped)
        session.output_number += 1

    def _send(self, session: _OpenSession, message: EngineMessage) -> None:
        """Raises what `FrameEncoder.encode` does, and then nothing was sent. A send without room ends the session."""
        self._reclaim(session)
        buffer = self._spare_buffers.pop() if self._spare_buffers else bytearray(FIRST_BUFFER_BYTES)
        try:
            frames = self._encoder.encode_into(message, buffer, max_bytes=session.admitted.max_message_bytes)
        except Exception:
            self._recycle(buffer)
            raise
        try:
            tracker = sockets.send_frames(session.push, frames)
        except zmq.ZMQError as error:
            self._recycle(buffer)
            self._end(session, f"cannot send: {error}")
            return
        if tracker is None:
            self._recycle(buffer)
            return
        nbytes = size_of(frames)
        session.pending.append(_Pending(tracker, nbytes, message, buffer))
        session.pending_bytes += nbytes
        if session.pending_bytes > MAX_BYTES_WAITING_PER_PEER:
            self._end(session, f"{session.pending_bytes} bytes wait for the frontend")

    def _reclaim(self, session: _OpenSession) -> None:
        while session.pending and session.pending[0].tracker.done:
            done = session.pending.popleft()
            session.pending_bytes -= done.nbytes
            self._recycle(done.buffer)

    def _recycle(self, buffer: bytearray) -> None:
        if len(self._spare_buffers) < MAX_SPARE_BUFFERS and len(buffer) <= MAX_SPARE_BUFFER_BYTES:
            self._spare_buffers.append(buffer)

    def _end(self, session: _OpenSession, reason: str) -> None:
        """The input thread closes the rest and answers with `ClosePush`."""
        del self._sessions[session.client_index]
        self._close_push(session.push)
        self._mailbox.post(PushBroken(session.client_index, reason))

    @staticmethod
    def _close_push(push: Socket, *, linger_ms: int = 0) -> None:
        sockets.stop_monitor(push)
        push.close(linger_ms)
