from __future__ import annotations

from roundhouse.protocol.frames import ENGINE_TYPES, FrameDecoder, FrameEncoder
from tests.bench import parts, wire


def test_the_scheduler_part_has_its_figures() -> None:
    values = parts.measure("scheduler")
    assert list(values) == [figure.name for figure in parts.FIGURES["scheduler"]]
    assert all(value > 0 for value in values.values())


def test_the_message_on_the_wire_is_a_whole_step() -> None:
    message = wire.outputs_of_a_step()
    assert FrameDecoder(ENGINE_TYPES).decode(FrameEncoder(ENGINE_TYPES).encode(message)) == message
    assert [len(output.new_token_ids) for output in message.outputs] == [1] * 64
    assert len({output.request_id for output in message.outputs}) == 64


def test_the_request_on_the_wire_has_the_prompt_of_the_served_rows() -> None:
    assert len(wire.add().prompt_token_ids) == 128
