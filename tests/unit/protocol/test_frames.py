import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.protocol import messages as m
from roundhouse.protocol.errors import MalformedFrame, MessageTooLarge
from roundhouse.protocol.frames import (
    ENGINE_CORE_DEAD,
    ENGINE_TYPES,
    FRONTEND_TYPES,
    FrameDecoder,
    FrameEncoder,
    size_of,
    validate_alive,
)
from roundhouse.protocol.limits import MAX_FRAMES
from tests.golden.wire.samples import ENGINE_MESSAGES, FRONTEND_MESSAGES, read_golden

DECODERS = [FrameDecoder(FRONTEND_TYPES), FrameDecoder(ENGINE_TYPES)]
VALID = [read_golden(name) for name in [*FRONTEND_MESSAGES, *ENGINE_MESSAGES]]


def decode_or_malformed(frames: list[bytes]) -> None:
    for decoder in DECODERS:
        try:
            decoder.decode(frames)
        except MalformedFrame:
            pass


@given(st.lists(st.binary(max_size=64), max_size=6))
@settings(max_examples=300)
def test_random_bytes_raise_malformed_frame_only(frames: list[bytes]) -> None:
    decode_or_malformed(frames)


@given(
    st.sampled_from([*FRONTEND_TYPES.values(), *ENGINE_TYPES.values()]), st.lists(st.binary(max_size=48), max_size=3)
)
@settings(max_examples=300)
def test_random_payloads_of_real_types_raise_malformed_frame_only(kind: bytes, frames: list[bytes]) -> None:
    decode_or_malformed([kind, *frames])


@st.composite
def mutated_frames(draw: st.DrawFn) -> list[bytes]:
    """Valid frames with a few bytes changed, a frame cut, doubled, dropped or swapped."""
    frames = [bytearray(frame) for frame in draw(st.sampled_from(VALID))]
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(frames) - 1))
        match draw(st.sampled_from(["flip", "cut", "insert", "double", "drop"])):
            case "flip" if frames[place]:
                frames[place][draw(st.integers(0, len(frames[place]) - 1))] = draw(st.integers(0, 255))
            case "cut":
                del frames[place][draw(st.integers(0, len(frames[place]))) :]
            case "insert":
                at = draw(st.integers(0, len(frames[place])))
                frames[place][at:at] = draw(st.binary(min_size=1, max_size=5))
            case "double":
                frames.insert(place, bytearray(frames[place]))
            case "drop" if len(frames) > 1:
                del frames[place]
            case _:
                pass
    return [bytes(frame) for frame in frames]


@given(mutated_frames())
@settings(max_examples=600)
def test_mutated_frames_raise_malformed_frame_only(frames: list[bytes]) -> None:
    decode_or_malformed(frames)


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 100_000 + b"\x01",  # nested deeper than any stack
        b"\xdd\xff\xff\xff\xff",  # an array of 2**32 items that are not there
        b"\xc6\xff\xff\xff\xff",  # as many bytes
        b"\xc1",  # no type of msgpack
        b"",
    ],
)
def test_hostile_payloads_are_malformed(payload: bytes) -> None:
    for decoder, kinds in zip(DECODERS, (FRONTEND_TYPES, ENGINE_TYPES), strict=True):
        for kind in kinds.values():
            with pytest.raises(MalformedFrame):
                decoder.decode([kind, payload])


def test_counts_and_sizes_are_checked_before_anything_is_decoded() -> None:
    ping = [b"\x04", read_golden("ping")[1]]
    assert DECODERS[0].decode(ping) == FRONTEND_MESSAGES["ping"]
    for frames in ([], [b"\x04"], [*ping, *[b""] * MAX_FRAMES], [b"\x77", ping[1]], [b"x" * 17, ping[1]]):
        with pytest.raises(MalformedFrame):
            DECODERS[0].decode(frames)
    with pytest.raises(MalformedFrame):
        DECODERS[0].decode(ping, max_bytes=size_of(ping) - 1)
    assert DECODERS[0].decode(ping, max_bytes=size_of(ping)) == FRONTEND_MESSAGES["ping"]


def test_a_message_over_the_limit_is_not_encoded() -> None:
    encoder = FrameEncoder(FRONTEND_TYPES)
    request = m.EngineCoreRequest("r", list(range(1000)), None, 0.0)
    size = size_of(encoder.encode(request))
    assert len(encoder.encode(request, max_bytes=size)) == 2
    with pytest.raises(MessageTooLarge) as caught:
        encoder.encode(request, max_bytes=size - 1)
    assert caught.value.message == f"a message of {size} bytes is over the peer's limit of {size - 1}"


def test_too_many_frames_are_not_encoded() -> None:
    array = np.zeros(100)
    outputs = [m.EngineCoreOutput(str(i), 0, 0, [], pooling_output=array) for i in range(MAX_FRAMES - 1)]
    with pytest.raises(MessageTooLarge):
        FrameEncoder(ENGINE_TYPES).encode(m.EngineCoreOutputs(outputs=outputs))
    assert len(FrameEncoder(ENGINE_TYPES).encode(m.EngineCoreOutputs(outputs=outputs[:-1]))) == MAX_FRAMES


def test_encode_into_reuses_the_buffer() -> None:
    buffer = bytearray(b"x" * 1000)
    frames = FrameEncoder(FRONTEND_TYPES).encode_into(FRONTEND_MESSAGES["ping"], buffer)
    assert frames[1] is buffer
    assert [bytes(frame) for frame in frames] == read_golden("ping")


def test_last_words_are_told_from_everything_else() -> None:
    assert not validate_alive(read_golden("died"))
    assert read_golden("died")[0] == ENGINE_CORE_DEAD
    assert all(validate_alive(read_golden(name)) for name in ENGINE_MESSAGES if name != "died")
