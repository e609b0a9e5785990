"""One message of every kind with every field set, and one with as little as can be set: what the golden bytes encode.

`python -m tests.golden.wire.samples` writes the files of messages that have none yet. It never changes a file: bytes of
a released version are what old peers send and expect.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roundhouse.protocol import messages as m
from roundhouse.protocol.frames import ENGINE_TYPES, FRONTEND_TYPES, FrameEncoder
from roundhouse.protocol.sampling import FinishReason, SamplingParams, StructuredOutputsParams

FOLDER = Path(__file__).parent / "v1"
OLDER = Path(__file__).parent / "v1_older"
"""Messages as they were written before a struct in them got another field: nobody writes them now, all read them."""

STATS = m.SchedulerStats(3, 2, 0.25, 1000, 64, 500, 400, 7, 9000, 8000)
"""Every number differs, so that two fields that changed places show."""

PARAMS = SamplingParams(
    n=2,
    temperature=0.5,
    top_p=0.75,
    top_k=40,
    min_p=0.125,
    presence_penalty=0.25,
    frequency_penalty=-0.25,
    repetition_penalty=1.5,
    seed=2**64 - 1,
    max_tokens=100,
    min_tokens=3,
    stop=["\n\n", "ende"],
    stop_token_ids=[7, 8],
    include_stop_str_in_output=True,
    ignore_eos=True,
    logprobs=5,
    prompt_logprobs=0,
    logit_bias={11: -1.5},
    allowed_token_ids=[11, 12],
    detokenize=True,
    skip_special_tokens=False,
    spaces_between_special_tokens=False,
)

BIG = np.arange(128, dtype=np.int32).reshape(64, 2)
"""Over `INLINE_BELOW`: it rides in a frame of its own. The ranks beside it do not."""

FRONTEND_MESSAGES = {
    "add": m.EngineCoreRequest(
        "req-ü",
        [1, 2, 300, 70000],
        PARAMS,
        1700000000.5,
        eos_token_id=2,
        priority=-1,
        attempt=3,
        output_token_ids=[9, 10],
        child_index=1,
        cache_salt="salt",
        pooling_params=m.PoolingParams(task="embed"),
        lora_name="adapter",
        data_parallel_rank=4,
        current_wave=5,
        trace_headers={"traceparent": "00-1"},
    ),
    "add_guided": m.EngineCoreRequest(
        "r",
        [1],
        SamplingParams(
            structured_outputs=StructuredOutputsParams(
                json='{"type":"object"}', regex="[0-9]+", choice=["ja", "nein"], grammar='start: "a"', json_object=True
            )
        ),
        0.5,
    ),
    "add_least": m.EngineCoreRequest("r", [], None, 0.0),
    "abort": m.AbortRequests(["a", "b"]),
    "start_dp_wave": m.StartDPWave(7, 1),
    "utility": m.UtilityRequest(2**40, "reset_prefix_cache", [1, "two", None, {"three": 3.0}]),
    "ping": m.Ping("frontend-1", 12, 34),
    "admitted": m.Admitted("frontend-1", 5, 2, 1, 2**26, ["tcp://10.0.0.1:5570"]),
    "refused": m.Refused("model", "this frontend serves 'a', not 'b'"),
}

ENGINE_MESSAGES = {
    "outputs": m.EngineCoreOutputs(
        5,
        2,
        (1700000000000, 1700000000001),
        99,
        [
            m.EngineCoreOutput(
                "req-ü",
                3,
                17,
                [300, 70000],
                FinishReason.STOP,
                "ende",
                m.LogprobsLists([[1, 2], [3, 4]], [[-0.5, -1.5], [-0.25, -2.5]], [1, 9]),
                m.PromptLogprobs(BIG, BIG.astype(np.float32), BIG[:, 0].copy()),
                [m.EngineCoreEvent(m.EventType.QUEUED, 1.5), m.EngineCoreEvent(m.EventType.PREEMPTED, 2.5)],
                16,
                m.OutputError("prompt_never_fits", "too long", "prompt"),
                np.array([0.5, -0.5], dtype=np.float16),
                {"remote": ["x", 1]},
            ),
            m.EngineCoreOutput("r", 0, 0, [1]),
        ],
        STATS,
        12.5,
        m.UtilityOutput(2**40, {"ok": True}, "failed"),
        8,
        9,
    ),
    "outputs_least": m.EngineCoreOutputs(),
    "draining": m.Draining(5, "shutdown", 30.0),
    "hello": m.Hello(
        "llama-0",
        (1700000000000, 1700000000001),
        bytes(range(16)),
        [2, 1],
        "llama",
        "resume-key",
        16,
        1024,
        4096,
        256,
        2**26,
        "group-0",
        1,
        2,
        49152,
    ),
    "pong": m.Pong(5, 34, 12, 99, STATS, 0.75),
    "died": m.Died(5, "out of memory"),
}


def encode(name: str) -> list[bytes]:
    """The frames of the sample `name`."""
    if name in FRONTEND_MESSAGES:
        return [bytes(frame) for frame in FrameEncoder(FRONTEND_TYPES).encode(FRONTEND_MESSAGES[name])]
    return [bytes(frame) for frame in FrameEncoder(ENGINE_TYPES).encode(ENGINE_MESSAGES[name])]


def read_golden(name: str, folder: Path = FOLDER) -> list[bytes]:
    """One line of hex for each frame."""
    return [bytes.fromhex(line) for line in (folder / f"{name}.hex").read_text().splitlines()]


def main() -> None:
    for name in [*FRONTEND_MESSAGES, *ENGINE_MESSAGES]:
        path = FOLDER / f"{name}.hex"
        if not path.exists():
            path.write_text("".join(frame.hex() + "\n" for frame in encode(name)))


if __name__ == "__main__":
    main()
