"""Frame layouts: message ↔ [type byte, payload, buffer …], and the lone marker of a dying engine.

The ROUTER's routing id and the empty registration frame belong to `transport`. A layout never changes for a type byte;
a new layout gets a new byte. Sizes and counts are checked before sending and before decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from roundhouse.protocol import messages as m
from roundhouse.protocol.errors import MalformedFrame, MessageTooLarge
from roundhouse.protocol.limits import (
    MAX_CONTROL_PAYLOAD_BYTES,
    MAX_FRAMES,
    MAX_INPUT_PAYLOAD_BYTES,
    MAX_MESSAGE_BYTES,
)
from roundhouse.protocol.serial import Buffer, MsgpackDecoder, MsgpackEncoder

ENGINE_CORE_DEAD = b"ENGINE_CORE_DEAD"

FrontendMessage = (
    m.EngineCoreRequest | m.AbortRequests | m.StartDPWave | m.UtilityRequest | m.Ping | m.Admitted | m.Refused
)
EngineMessage = m.EngineCoreOutputs | m.Draining | m.Hello | m.Pong | m.Died

FRONTEND_TYPES: dict[type, bytes] = {
    m.EngineCoreRequest: b"\x00",
    m.AbortRequests: b"\x01",
    m.StartDPWave: b"\x02",
    m.UtilityRequest: b"\x03",
    m.Ping: b"\x04",
    m.Admitted: b"\x05",
    m.Refused: b"\x06",
}
"""Frontend → engine."""

ENGINE_TYPES: dict[type, bytes] = {
    m.EngineCoreOutputs: b"\x00",
    m.Draining: b"\x01",
    m.Hello: b"\x02",
    m.Pong: b"\x03",
    m.Died: ENGINE_CORE_DEAD,
}
"""Engine → frontend."""

PAYLOAD_BOUNDS: dict[type, int] = {
    m.EngineCoreRequest: MAX_INPUT_PAYLOAD_BYTES,
    m.AbortRequests: MAX_INPUT_PAYLOAD_BYTES,
    m.Admitted: MAX_INPUT_PAYLOAD_BYTES,
    m.StartDPWave: MAX_CONTROL_PAYLOAD_BYTES,
    m.UtilityRequest: MAX_CONTROL_PAYLOAD_BYTES,
    m.Ping: MAX_CONTROL_PAYLOAD_BYTES,
    m.Refused: MAX_CONTROL_PAYLOAD_BYTES,
}
"""Of the msgpack of a message; what is not here has its encoder's and its decoder's bound alone."""


def size_of(frames: Sequence[Buffer]) -> int:
    """Bytes of all frames together."""
    size = 0
    for frame in frames:
        size += frame.nbytes if isinstance(frame, memoryview) else len(frame)
    return size


def validate_alive(frames: Sequence[Buffer]) -> bool:
    """False when `frames` are an engine's last words."""
    return bytes(frames[0]) != ENGINE_CORE_DEAD


def _payload_bounds(types: Iterable[type], max_payload_bytes: int) -> dict[type, int]:
    return {cls: min(max_payload_bytes, PAYLOAD_BOUNDS.get(cls, max_payload_bytes)) for cls in types}


class FrameEncoder:
    """Messages of one direction → frames. Not thread-safe: one per thread.

    max_payload_bytes: of each message; those of `PAYLOAD_BOUNDS` have theirs as well.
    """

    def __init__(self, types: dict[type, bytes], *, max_payload_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._types = types
        self._max_payload_bytes = _payload_bounds(types, max_payload_bytes)
        self._encoder = MsgpackEncoder()

    def encode(self, message: Any, *, max_bytes: int = MAX_MESSAGE_BYTES) -> list[Buffer]:
        """[type byte, payload, buffer …]. Raises `MessageTooLarge`, with nothing to undo."""
        return self._bounded(message, self._encoder.encode(message), max_bytes)

    def encode_into(self, message: Any, payload: bytearray, *, max_bytes: int = MAX_MESSAGE_BYTES) -> list[Buffer]:
        """As `encode`, with the payload written over `payload`: leave it alone until ZMQ is done with it."""
        return self._bounded(message, self._encoder.encode_into(message, payload), max_bytes)

    def _bounded(self, message: Any, encoded: Sequence[Buffer], max_bytes: int) -> list[Buffer]:
        frames = [self._types[type(message)], *encoded]
        max_payload_bytes = self._max_payload_bytes[type(message)]
        size = size_of(frames)
        if size > max_bytes:
            raise MessageTooLarge(f"a message of {size} bytes is over the peer's limit of {max_bytes}")
        if len(frames[1]) > max_payload_bytes:
            raise MessageTooLarge(f"a payload of {len(frames[1])} bytes is over the limit of {max_payload_bytes}")
        if len(frames) > MAX_FRAMES:
            raise MessageTooLarge(f"a message of {len(frames)} frames is over the limit of {MAX_FRAMES}")
        return frames


class _OfSession(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The begin that all messages of an engine share, Hello alone excepted. What is behind it makes no object."""

    session_id: int = 0


class FrameDecoder:
    """Frames of one direction → messages. Not thread-safe: one per thread. Raises `MalformedFrame` and nothing else.

    max_payload_bytes: as an encoder's.
    """

    def __init__(self, types: dict[type, bytes], *, max_payload_bytes: int = MAX_MESSAGE_BYTES) -> None:
        bounds = _payload_bounds(types, max_payload_bytes)
        self._decoders: dict[bytes, tuple[MsgpackDecoder[Any], int]] = {
            byte: (MsgpackDecoder(cls), bounds[cls]) for cls, byte in types.items()
        }
        self._begin = MsgpackDecoder(_OfSession)

    def decode(self, frames: Sequence[Buffer], *, max_bytes: int = MAX_MESSAGE_BYTES) -> Any:
        """The message in `frames` = [type byte, payload, buffer …]."""
        return self._decoder_of(frames, max_bytes).decode(frames[1:])

    def session_of(self, frames: Sequence[Buffer]) -> int:
        """The session that an engine's message names, which is no Hello. A hundredth of what `decode` can cost: who
        speaks for no session of its own is not worth that. `decode` may find it malformed yet."""
        self._decoder_of(frames, MAX_MESSAGE_BYTES)
        return self._begin.decode(frames[1:2]).session_id

    def _decoder_of(self, frames: Sequence[Buffer], max_bytes: int) -> MsgpackDecoder[Any]:
        if not 2 <= len(frames) <= MAX_FRAMES:
            raise MalformedFrame(f"{len(frames)} frames")
        if size_of(frames) > max_bytes:
            raise MalformedFrame("over the size limit")
        known = self._decoders.get(bytes(frames[0])) if len(frames[0]) <= len(ENGINE_CORE_DEAD) else None
        if known is None:
            raise MalformedFrame("unknown type byte")
        decoder, max_payload_bytes = known
        if size_of(frames[1:2]) > max_payload_bytes:
            raise MalformedFrame("over the size limit")
        return decoder
