import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.protocol import limits
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
from roundhouse.protocol.sampling import SamplingParams, StructuredOutputsParams
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


def longest_request() -> m.EngineCoreRequest:
    """All that a request may have at once, in a context of 2**20 tokens, each number written as long as it gets."""
    token_id = limits.MAX_TOKEN_ID
    params = SamplingParams(
        stop=["🙂" * limits.MAX_STOP_CHARS] * limits.MAX_STOP_STRINGS,
        stop_token_ids=[token_id] * limits.MAX_STOP_TOKEN_IDS,
        logit_bias={token_id - place: 0.1 for place in range(limits.MAX_LOGIT_BIAS)},
        allowed_token_ids=[token_id] * limits.MAX_ALLOWED_TOKEN_IDS,
        structured_outputs=StructuredOutputsParams(
            choice=["x" * (limits.MAX_GUIDED_CHOICES_BYTES // limits.MAX_GUIDED_CHOICES)] * limits.MAX_GUIDED_CHOICES
        ),
    )
    params.verify()
    return m.EngineCoreRequest(
        "🙂" * limits.MAX_INNER_REQUEST_ID_CHARS,
        [token_id] * 2**19,
        params,
        1.5,
        output_token_ids=[token_id] * 2**19,
        cache_salt="🙂" * limits.MAX_CACHE_SALT_CHARS,
    )


def test_the_longest_request_is_within_the_bound_of_an_engines_input() -> None:
    request = longest_request()
    frames = FrameEncoder(FRONTEND_TYPES).encode(request)
    assert 6.25 * 2**20 < len(frames[1]) < limits.MAX_INPUT_PAYLOAD_BYTES - 2**20
    assert DECODERS[0].decode(frames) == request


def test_a_message_to_an_engine_has_the_bound_of_its_type() -> None:
    """Over it the encoder refuses, and the decoder looks at nothing."""
    too_long = m.EngineCoreRequest("r", [2**17] * (limits.MAX_INPUT_PAYLOAD_BYTES // 5), None, 0.0)
    utility = m.UtilityRequest(1, "f", [[]] * limits.MAX_CONTROL_PAYLOAD_BYTES)
    for message, bound in ((too_long, limits.MAX_INPUT_PAYLOAD_BYTES), (utility, limits.MAX_CONTROL_PAYLOAD_BYTES)):
        with pytest.raises(MessageTooLarge, match=f"is over the limit of {bound}$"):
            FrameEncoder(FRONTEND_TYPES).encode(message)
        with pytest.raises(MalformedFrame, match="over the size limit"):
            DECODERS[0].decode([FRONTEND_TYPES[type(message)], msgspec.msgpack.encode(message)])


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


@pytest.mark.parametrize(
    "name", [name for name, message in ENGINE_MESSAGES.items() if not isinstance(message, m.Hello)]
)
def test_the_session_of_an_engines_message_without_the_message(name: str) -> None:
    decoder = FrameDecoder(ENGINE_TYPES)
    frames = read_golden(name)
    assert decoder.session_of(frames) == decoder.decode(frames).session_id


@given(st.lists(st.binary(max_size=64), max_size=6))
def test_the_session_of_random_bytes_raises_malformed_frame_only(frames: list[bytes]) -> None:
    try:
        FrameDecoder(ENGINE_TYPES).session_of([ENGINE_TYPES[m.Pong], *frames])
    except MalformedFrame:
        pass
