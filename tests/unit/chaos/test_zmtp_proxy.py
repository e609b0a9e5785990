from hypothesis import given
from hypothesis import strategies as st

from tests.support.zmtp_proxy import COMMAND, GREETING_BYTES, LONG, MORE, Frame, Gate, Greeting, Sluice, ZmtpParser

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(GREETING_BYTES - 16)


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) > 255:
        return bytes([flags | LONG]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body


READY = frame(b"\x05READY", COMMAND)
PING = frame(b"\x04PING\x00\x00", COMMAND)


def message(*bodies: bytes) -> bytes:
    return b"".join(frame(body, MORE) for body in bodies[:-1]) + frame(bodies[-1])


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=4), st.lists(st.integers(1, 30)))
def test_the_parser_finds_the_frames_in_pieces_of_any_size(bodies: list[bytes], sizes: list[int]) -> None:
    wire = GREETING + READY + message(*bodies)
    parser, units, place = ZmtpParser(), [], 0
    for size in [*sizes, len(wire)]:
        units += parser.feed(wire[place : place + size])
        place += size
    greeting = b"".join(unit.wire for unit in units if isinstance(unit, Greeting))
    ready, *frames = [unit for unit in units if isinstance(unit, Frame)]
    assert (greeting, ready) == (GREETING, Frame(COMMAND, b"\x05READY", READY))
    assert [frame.body for frame in frames] == bodies
    assert [frame.has_more for frame in frames] == [True] * (len(bodies) - 1) + [False]
    assert b"".join(unit.wire for unit in units) == wire


def test_a_greeting_passes_as_it_comes() -> None:
    """Or both sides would wait for ever."""
    parser = ZmtpParser()
    assert parser.feed(GREETING[:10]) == [Greeting(GREETING[:10])]
    assert parser.feed(GREETING[10:] + PING) == [Greeting(GREETING[10:]), Frame(COMMAND, PING[2:], PING)]


def test_a_frame_is_what_its_flags_say() -> None:
    assert (Frame(COMMAND, b"", b"").is_command, Frame(MORE, b"", b"").is_command) == (True, False)
    (greeting, long) = ZmtpParser().feed(GREETING + frame(bytes(300)))
    assert (greeting, long) == (Greeting(GREETING), Frame(LONG, bytes(300), frame(bytes(300))))


def opened(gate: Gate) -> Sluice:
    sluice = Sluice(gate)
    assert sluice.pass_on(GREETING + READY) == GREETING + READY
    return sluice


def test_whole_messages_are_lost_and_commands_pass() -> None:
    gate = Gate()
    sluice = opened(gate)
    gate.drop(2)
    first, second, third = message(b"\x00", b"one"), message(b"\x00", bytes(300)), message(b"\x00", b"three")
    assert sluice.pass_on(first + PING + second + third) == PING + third
    assert gate.num_dropped == 2


def test_a_message_in_pieces_is_lost_as_one() -> None:
    gate = Gate()
    sluice = opened(gate)
    gate.drop(1)
    wire = message(b"\x00", b"one", b"two")
    assert [sluice.pass_on(bytes([byte])) for byte in wire] == [b""] * len(wire)
    assert sluice.pass_on(wire) == wire


def test_sealed_frames_are_lost_one_by_one() -> None:
    """CURVE hides in each which ones make a message."""
    gate = Gate()
    sluice = opened(gate)
    gate.drop(1)
    first, second = frame(b"\x07MESSAGE" + bytes(40)), frame(b"\x07MESSAGE" + bytes(300))
    assert sluice.pass_on(first + second) == second
    assert gate.num_dropped == 1


def test_messages_of_one_type_are_lost() -> None:
    gate = Gate()
    sluice = opened(gate)
    gate.drop(1, b"\x03")
    output, pong = message(b"\x00", b"output"), message(b"\x03", b"pong")
    assert sluice.pass_on(output + pong + pong) == output + pong
    assert gate.num_dropped == 1


def test_in_silence_nothing_passes_not_even_commands() -> None:
    gate = Gate()
    sluice = opened(gate)
    gate.is_silent = True
    assert sluice.pass_on(PING + message(b"lost")) == b""
    gate.is_silent = False
    assert sluice.pass_on(PING) == PING
