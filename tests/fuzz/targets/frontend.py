"""An engine's frames → the frontend's client, dispatcher and output processor. Nothing that an engine sends ends a
frontend, moves another engine's session or touches a request of another engine.
"""

from __future__ import annotations

import asyncio
from random import Random

from roundhouse.frontend.async_llm import AsyncLLM
from roundhouse.frontend.config import FrontendConfig
from roundhouse.frontend.mp_client import AsyncMPClient
from roundhouse.frontend.outputs import RequestOutput
from roundhouse.protocol.errors import RoundhouseError
from roundhouse.protocol.frames import ENGINE_TYPES, FrameEncoder
from roundhouse.protocol.messages import (
    Died,
    Draining,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    LogprobsLists,
    OutputError,
    Pong,
    SchedulerStats,
    UtilityOutput,
)
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from tests.fuzz.mutation import mutate_parcel
from tests.fuzz.parcel import pack, unpack
from tests.fuzz.target import Target, expect
from tests.fuzz.targets.frames import mutate_frame
from tests.support.fake_time_loop import run as run_in_fake_time
from tests.support.mesh import hello
from tests.support.small_tokenizers import byte_level
from tests.unit.frontend.test_mp_client import PlayedEngine, PlayedLink

NUM_TOKENS = 3
HOSTILE_SESSION, HOSTILE_INDEX = 1, 0
HONEST_SESSION = 0x5EC2_E7A1_91B3_D06F
"""As the real numbers are: who does not know it does not guess it. It is the only thing that keeps sessions apart on a
mesh without keys.
"""

_EPOCH = (1, 1)
_TOKENIZER = byte_level()


def run(data: bytes) -> bool:
    return run_in_fake_time(_play(data))


async def _play(data: bytes) -> bool:
    """Parts in pairs, [type byte][payload], by the hostile engine's PUSH. Each engine has one request."""
    loop = asyncio.get_running_loop()
    client = AsyncMPClient(
        "tcp://127.0.0.1:5570",
        session_ids=iter([HOSTILE_SESSION, HONEST_SESSION]),
        clock=loop.time,
        make_link=PlayedLink,
    )
    llm = AsyncLLM(FrontendConfig(), _TOKENIZER, client, random_bits=lambda bits: 7, monotonic=loop.time)
    hostile = PlayedEngine(client, hello("hostile"))
    honest = PlayedEngine(client, hello("honest", nonce=1))
    answer_all = Answerer(honest)
    tasks = [asyncio.create_task(_answer(llm, name, rank)) for name, rank in (("victim", HOSTILE_INDEX), ("other", 1))]
    await _settle()
    facts = _facts_of_honest(client)
    parts = unpack(data)
    for kind, payload in zip(parts[::2], parts[1::2], strict=False):
        client.process_outputs_socket([kind, payload])
        await _settle()
    expect(client._failure is None, f"the client failed: {client._failure}")
    expect(not llm.errored, "the output handler failed")
    expect(_facts_of_honest(client) == facts, "an honest engine's session was moved")
    answer_all()
    await _settle()
    hostile.vanish()
    for _ in range(4):
        await asyncio.sleep(0.2)
        answer_all()
        await _settle()
    outcomes = await asyncio.gather(*tasks)
    expect(isinstance(outcomes[1], RequestOutput), f"another engine's request ended in {outcomes[1]!r}")
    processor = llm.output_processor
    expect(not (processor.request_states or processor.parents or len(client._live)), "something is left of a request")
    llm.shutdown()
    return client.counters.num_malformed == 0


async def _answer(llm: AsyncLLM, request_id: str, rank: int) -> RequestOutput | RoundhouseError:
    """The whole answer, or the error of our tree that the request ended in."""
    last: RequestOutput | None = None
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, logprobs=1)
    try:
        async for output in llm.generate("Hello the", params, request_id, data_parallel_rank=rank):
            last = output
    except RoundhouseError as error:
        return error
    assert last is not None
    return last


class Answerer:
    """Ends every request that the honest engine is given, once."""

    def __init__(self, engine: PlayedEngine) -> None:
        self._engine = engine
        self._num_seen = 0

    def __call__(self) -> None:
        fresh, self._num_seen = self._engine.received[self._num_seen :], len(self._engine.received)
        for message in fresh:
            if isinstance(message, EngineCoreRequest):
                place = (message.request_id, message.attempt, len(message.output_token_ids))
                logprobs = _logprobs(NUM_TOKENS)
                output = EngineCoreOutput(*place, [65] * NUM_TOKENS, FinishReason.LENGTH, new_logprobs=logprobs)
                self._engine.output(output)


def _facts_of_honest(client: AsyncMPClient) -> list[object]:
    views = [view for view in client.engines() if view.identity == "honest"]
    return [(view.engine_index, view.state, view.hello) for view in views]


async def _settle() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def _logprobs(num_rows: int) -> LogprobsLists:
    return LogprobsLists([[65, 66]] * num_rows, [[-0.5, -1.5]] * num_rows, [1] * num_rows)


def mutate(parcel: bytes, rng: Random) -> bytes:
    return mutate_parcel(parcel, rng, lambda place, part, rng: mutate_frame(place % 2, part, rng))


def _sent(*messages: object) -> bytes:
    encoder = FrameEncoder(ENGINE_TYPES)
    return pack(bytes(frame) for message in messages for frame in encoder.encode(message)[:2])


def _outputs(number: int, *outputs: EngineCoreOutput, **fields: object) -> EngineCoreOutputs:
    return EngineCoreOutputs(HOSTILE_SESSION, HOSTILE_INDEX, _EPOCH, number, list(outputs), **fields)  # type: ignore[arg-type]


def _seeds() -> list[tuple[str, bytes]]:
    stats = SchedulerStats(1, 0, 0.5, 10, 9)
    first = EngineCoreOutput("victim", 0, 0, [65], new_logprobs=_logprobs(1), num_cached_tokens=2)
    last = EngineCoreOutput("victim", 0, 1, [66, 67], FinishReason.STOP, 67, new_logprobs=_logprobs(2))
    failed = EngineCoreOutput("victim", 0, 0, [], FinishReason.ERROR, error=OutputError("x", "y"))
    given_back = EngineCoreOutput("victim", 0, 0, [65], FinishReason.ABORT)
    of_another = EngineCoreOutput("other", 0, 0, [1, 2, 3], FinishReason.STOP)
    return [
        ("an_answer", _sent(_outputs(1, first, scheduler_stats=stats, timestamp=2.0), _outputs(2, last))),
        ("a_failure", _sent(_outputs(1, failed))),
        ("given_back_and_draining", _sent(Draining(HOSTILE_SESSION, "x", 1.0), _outputs(1, given_back))),
        ("another_engines_request", _sent(_outputs(1, of_another), Died(HOSTILE_SESSION, "memory"))),
        ("pong_and_utility", _sent(_outputs(1, utility_output=UtilityOutput(1, 2)), Pong(1, 1, 2, 1, stats, 0.5))),
    ]


FRONTEND = Target("frontend_outputs", run, mutate, _seeds)
