"""The parts of a step measured alone, in a process of their own.

`python -m tests.bench.parts [scheduler] [runner] [wire]`. One JSON object on stdout: the figure's name → its value.
Without arguments all of them.
"""

from __future__ import annotations

import json
import sys

from tests.bench.results import Figure


def _step(what: str) -> dict[int, Figure]:
    return {streams: Figure(f"{what}, {streams} stream{'s' * (streams > 1)}", "µs", "lower") for streams in (1, 64)}


SCHEDULER_STEP = _step("scheduler alone: schedule and update")
RUNNER_STEP = _step("runner without the model, greedy")
"""By number of streams."""

ENCODE_OUTPUTS = Figure("wire: encode the outputs of 64 requests", "µs", "lower")
DECODE_OUTPUTS = Figure("wire: decode the outputs of 64 requests", "µs", "lower")
ENCODE_ADD = Figure("wire: encode one ADD of 128 tokens", "µs", "lower")
DECODE_ADD = Figure("wire: decode one ADD of 128 tokens", "µs", "lower")
ROUND_TRIP = Figure("wire: ZeroMQ round trip over ipc", "µs", "lower")
MESSAGES = Figure("wire: outputs of 64 requests, encoded, sent over ipc, decoded", "messages/s", "higher")

FIGURES: dict[str, tuple[Figure, ...]] = {
    "scheduler": tuple(SCHEDULER_STEP.values()),
    "runner": tuple(RUNNER_STEP.values()),
    "wire": (ENCODE_OUTPUTS, DECODE_OUTPUTS, ENCODE_ADD, DECODE_ADD, ROUND_TRIP, MESSAGES),
}


def measure(part: str) -> dict[str, float]:
    """The part's figures by name. Imports what it measures: torch with the runner."""
    if part == "scheduler":
        from tests.bench.scheduler_step import step_us as scheduler_step_us

        return {figure.name: scheduler_step_us(streams) for streams, figure in SCHEDULER_STEP.items()}
    if part == "runner":
        import torch

        from tests.bench.runner_step import GREEDY, SMALL_VOCABULARY, step_us

        # The tensors are so small that handing them to threads costs more than the work.
        torch.set_num_threads(1)
        return {figure.name: step_us(streams, SMALL_VOCABULARY, GREEDY) for streams, figure in RUNNER_STEP.items()}
    from tests.bench import wire

    return {
        ENCODE_OUTPUTS.name: wire.encode_us(wire.outputs_of_a_step()),
        DECODE_OUTPUTS.name: wire.decode_us(wire.outputs_of_a_step()),
        ENCODE_ADD.name: wire.encode_us(wire.add()),
        DECODE_ADD.name: wire.decode_us(wire.add()),
        ROUND_TRIP.name: wire.round_trip_us(),
        MESSAGES.name: wire.messages_per_s(),
    }


def main() -> None:
    values: dict[str, float] = {}
    for part in sys.argv[1:] or FIGURES:
        values |= measure(part)
    print(json.dumps(values))


if __name__ == "__main__":
    main()
