"""The bytes of protocol version 1. A failure here means that peers of two releases no longer understand each other: a
new field goes to the end of its struct, with a default, and the files stay as they are."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from roundhouse.protocol import messages as m
from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.frames import ENGINE_TYPES, FRONTEND_TYPES, FrameDecoder
from tests.golden.wire.samples import ENGINE_MESSAGES, FOLDER, FRONTEND_MESSAGES, OLDER, encode, read_golden

NAMES = [*FRONTEND_MESSAGES, *ENGINE_MESSAGES]


def decoder_of(name: str) -> FrameDecoder:
    return FrameDecoder(FRONTEND_TYPES if name in FRONTEND_MESSAGES else ENGINE_TYPES)


def plain(value: object) -> object:
    """A form that compares with ==, arrays and their dtypes included."""
    if isinstance(value, np.ndarray):
        return (value.dtype.name, value.tolist())
    if isinstance(value, msgspec.Struct):
        return (type(value).__name__, [plain(getattr(value, name)) for name in value.__struct_fields__])
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_the_golden_ones(name: str) -> None:
    assert [frame.hex() for frame in encode(name)] == [frame.hex() for frame in read_golden(name)]


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_bytes_are_understood(name: str) -> None:
    expected = (FRONTEND_MESSAGES | ENGINE_MESSAGES)[name]
    assert plain(decoder_of(name).decode(read_golden(name))) == plain(expected)


@pytest.mark.parametrize("path", sorted(OLDER.iterdir()), ids=lambda path: path.stem)
def test_what_was_written_before_a_field_was_appended_is_understood(path: Path) -> None:
    name = path.stem.split("-")[0]
    assert plain(decoder_of(name).decode(read_golden(path.stem, OLDER))) == plain(FRONTEND_MESSAGES[name])


def test_every_kind_of_message_has_golden_bytes() -> None:
    kinds = {type(message) for message in [*FRONTEND_MESSAGES.values(), *ENGINE_MESSAGES.values()]}
    assert kinds == {*FRONTEND_TYPES, *ENGINE_TYPES}
    assert {path.stem for path in FOLDER.iterdir()} == set(NAMES)


def test_the_samples_set_every_field_to_something_else_than_its_default() -> None:
    for name in ("add", "outputs", "hello", "pong", "ping", "admitted", "utility", "start_dp_wave"):
        message = (FRONTEND_MESSAGES | ENGINE_MESSAGES)[name]
        for field in msgspec.structs.fields(message):
            factory = field.default_factory
            default = factory() if callable(factory) else field.default
            assert plain(getattr(message, field.name)) != plain(default), (name, field.name)


@pytest.mark.parametrize("name", NAMES)
def test_a_newer_peer_appended_a_field(name: str) -> None:
    frames = read_golden(name)
    longer = [*msgspec.msgpack.decode(frames[1]), {"a": ["newer", "field"]}, 7]
    frames[1] = msgspec.msgpack.encode(longer)
    assert plain(decoder_of(name).decode(frames)) == plain((FRONTEND_MESSAGES | ENGINE_MESSAGES)[name])


@pytest.mark.parametrize("name", NAMES)
def test_an_older_peer_lacks_the_tail(name: str) -> None:
    message = (FRONTEND_MESSAGES | ENGINE_MESSAGES)[name]
    required = sum(field.required for field in msgspec.structs.fields(message))
    frames = read_golden(name)
    values = msgspec.msgpack.decode(frames[1])
    for length in range(required, len(values)):
        decoded = decoder_of(name).decode([frames[0], msgspec.msgpack.encode(values[:length]), *frames[2:]])
        rebuilt = type(message)(*[getattr(message, key) for key in message.__struct_fields__[:length]])
        assert plain(decoded) == plain(rebuilt)
    if required:
        with pytest.raises(MalformedFrame):
            decoder_of(name).decode([frames[0], msgspec.msgpack.encode(values[: required - 1]), *frames[2:]])


def test_the_type_bytes_are_those_of_version_1() -> None:
    assert {kind.__name__: byte for kind, byte in FRONTEND_TYPES.items()} == {
        "EngineCoreRequest": b"\x00",
        "AbortRequests": b"\x01",
        "StartDPWave": b"\x02",
        "UtilityRequest": b"\x03",
        "Ping": b"\x04",
        "Admitted": b"\x05",
        "Refused": b"\x06",
    }
    assert {kind.__name__: byte for kind, byte in ENGINE_TYPES.items()} == {
        "EngineCoreOutputs": b"\x00",
        "Draining": b"\x01",
        "Hello": b"\x02",
        "Pong": b"\x03",
        "Died": b"ENGINE_CORE_DEAD",
    }
    assert m.PROTOCOL_VERSIONS == [1]
