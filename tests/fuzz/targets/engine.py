"""A frontend's frames → the engine's session machine → its busy loop. Nothing that a frontend sends ends an engine."""

from __future__ import annotations

from random import Random

from roundhouse.protocol import session as s
from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.frames import FRONTEND_TYPES, FrameDecoder, FrameEncoder, FrontendMessage
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import AbortRequests, Admitted, Ping, StartDPWave, UtilityRequest
from roundhouse.protocol.sampling import FinishReason
from roundhouse.transport.items import Outputs, Received, SessionLost, SessionOpened
from tests.fuzz.mutation import mutate_parcel
from tests.fuzz.parcel import pack, unpack
from tests.fuzz.target import Target, expect
from tests.fuzz.targets.frames import mutate_frame
from tests.support.builders import engine_core_request
from tests.support.engine_parts import Proc

HOSTILE, HONEST = ClientIndex(1), ClientIndex(2)
MAX_STEPS = 24
NUM_TOKENS = 4

_decoder = FrameDecoder(FRONTEND_TYPES)


def run(data: bytes) -> bool:
    """Parts in pairs: type byte and payload. An honest frontend's request gets its tokens all the while."""
    engine = Proc(max_num_seqs=8)
    link = s.LinkSession("hostile", 0.0)
    link.on(s.Connected(), 0.0)
    engine.inbox.put(SessionOpened(HONEST))
    engine.inbox.put(Received(HONEST, engine_core_request("honest", 5, max_tokens=NUM_TOKENS)))
    parts = unpack(data)
    num_delivered = 0
    for place, (kind, payload) in enumerate(zip(parts[::2], parts[1::2], strict=False)):
        num_delivered += _receive(engine, link, [kind, payload], now=place / 8)
        if place % 4 == 3:
            _step(engine)
    for _ in range(MAX_STEPS):
        _step(engine)
    _check_honest(engine)
    engine.inbox.put(SessionLost(HOSTILE))
    _step(engine)
    _step(engine)
    expect(not engine.proc.core.has_requests(), "a request outlived its session")
    return num_delivered > 0


def _receive(engine: Proc, link: s.LinkSession, frames: list[bytes], now: float) -> int:
    """As the engine's input thread does it. Returns how many messages came as far as the busy loop."""
    if link.state in (s.SessionState.CLOSED, s.SessionState.REFUSED):
        return 0
    if frames[0] != FRONTEND_TYPES[Ping]:
        link.count_control_frame()
    before = link.state
    try:
        effects = link.receive(_decoder.decode(frames), now)
    except MalformedFrame:
        expect(link.state is before, "a malformed frame moved the session")
        return 0
    num_delivered = 0
    for effect in effects:
        match effect:
            case s.Open():
                engine.inbox.put(SessionOpened(HOSTILE))
            case s.Deliver(message):
                expect(before is s.SessionState.ADMITTED, "a message got through before the session was admitted")
                engine.inbox.put(Received(HOSTILE, message))
                num_delivered += 1
            case s.Close(was_open=True):
                engine.inbox.put(SessionLost(HOSTILE))
            case _:
                pass
    return num_delivered


def _step(engine: Proc) -> None:
    engine.inbox.put(Received(HONEST, AbortRequests([])))  # the busy loop waits for something to come
    engine.proc._process_input_queue()
    engine.proc._process_engine_step()


def _check_honest(engine: Proc) -> None:
    outputs = [
        output
        for item in engine.sent()
        if isinstance(item, Outputs) and item.client_index == HONEST
        for output in item.outputs.outputs
    ]
    expect({output.request_id for output in outputs} == {"honest"}, f"an honest frontend got {outputs}")
    expect(sum(len(output.new_token_ids) for output in outputs) == NUM_TOKENS, f"an honest request got {outputs}")
    expect(outputs[-1].finish_reason is FinishReason.LENGTH, f"an honest request ended otherwise: {outputs}")


def mutate(parcel: bytes, rng: Random) -> bytes:
    return mutate_parcel(parcel, rng, lambda place, part, rng: mutate_frame(place % 2, part, rng))


def _seeds() -> list[tuple[str, bytes]]:
    admitted = Admitted("frontend-1", 5, 0, 1, 2**20)
    request = engine_core_request("r", 9, max_tokens=3, temperature=1.0, logprobs=2, stop_token_ids=[7])
    resumed = engine_core_request("s", 5, outputs=[4, 3, 2], attempt=1, min_tokens=2, max_tokens=6, child_index=1)
    return [
        ("a_request_and_its_abort", _sent(admitted, Ping("frontend-1", 1, 1), request, AbortRequests(["r"]))),
        ("a_resumed_request", _sent(admitted, resumed, Ping("frontend-1", 2, 1))),
        ("one_id_twice", _sent(admitted, request, request, AbortRequests(["honest", "2:honest", "r"]))),
        ("utilities", _sent(admitted, UtilityRequest(1, "reset_prefix_cache"), StartDPWave(3), request)),
    ]


def _sent(*messages: FrontendMessage) -> bytes:
    encoder = FrameEncoder(FRONTEND_TYPES)
    return pack(bytes(frame) for message in messages for frame in encoder.encode(message))


ENGINE = Target("engine_input", run, mutate, _seeds)
