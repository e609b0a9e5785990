from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from roundhouse.engine.core import EngineCore
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreRequest, OutputError, PoolingParams
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from tests.support.builders import engine_core_request
from tests.support.engine_parts import VOCAB_SIZE, ScriptedExecutor, engine_core
from tests.support.scripted_runner import continue_prompt

A, B = ClientIndex(1), ClientIndex(2)


def outputs_of(
    core: EngineCore, on_executed: Callable[[], None] | None = None
) -> dict[ClientIndex, list[EngineCoreOutput]]:
    """Steps to the end; all outputs by client."""
    found: dict[ClientIndex, list[EngineCoreOutput]] = {}
    while core.has_requests():
        messages = core.step() if on_executed is None else core.step(on_executed)
        for client_index, message in messages.items():
            found.setdefault(client_index, []).extend(message.outputs)
    return found


def test_two_clients_may_use_one_id() -> None:
    core = engine_core()
    for client_index, prompt in ((A, [1, 2, 3]), (B, [4, 5])):
        request = engine_core_request("x", prompt, max_tokens=3, ignore_eos=True)
        assert core.add_request(request, client_index) is None
    found = outputs_of(core)
    for client_index, prompt in ((A, [1, 2, 3]), (B, [4, 5])):
        mine = found[client_index]
        assert {output.request_id for output in mine} == {"x"}
        assert [t for output in mine for t in output.new_token_ids] == continue_prompt(prompt, 3, vocab_size=VOCAB_SIZE)
        assert [output.finish_reason for output in mine] == [None, None, FinishReason.LENGTH]


GOOD = engine_core_request("x", [1], max_tokens=1)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (msgspec.structs.replace(GOOD, sampling_params=None), ("invalid_request", "pooling_params")),
        (msgspec.structs.replace(GOOD, pooling_params=PoolingParams()), ("invalid_request", "pooling_params")),
        (msgspec.structs.replace(GOOD, lora_name="a"), ("invalid_request", "lora_name")),
        (msgspec.structs.replace(GOOD, sampling_params=SamplingParams()), ("invalid_request", "seed")),
        (msgspec.structs.replace(GOOD, prompt_token_ids=[]), ("invalid_request", "prompt")),
        (msgspec.structs.replace(GOOD, prompt_token_ids=[VOCAB_SIZE]), ("invalid_request", "prompt")),
        (msgspec.structs.replace(GOOD, prompt_token_ids=[-1]), ("invalid_request", "prompt")),
        (msgspec.structs.replace(GOOD, output_token_ids=[VOCAB_SIZE]), ("invalid_request", "output_token_ids")),
        (engine_core_request("x", [1], temperature=float("nan")), ("invalid_request", "temperature")),
        (engine_core_request("x", [1], stop_token_ids=[VOCAB_SIZE]), ("invalid_request", "stop_token_ids")),
        (engine_core_request("x" * 300, [1]), ("invalid_request", "request_id")),
        (engine_core_request("x", [1], cache_salt="s" * 200), ("invalid_request", "cache_salt")),
        (engine_core_request("x", [1], eos_token_id=VOCAB_SIZE), ("invalid_request", "eos_token_id")),
        (engine_core_request("x", [1], child_index=-1), ("invalid_request", "child_index")),
        (engine_core_request("x", [1] * 256), ("context_length_exceeded", "prompt")),
    ],
)
def test_what_a_frontend_should_have_refused_ends_that_request_alone(
    request_: EngineCoreRequest, error: tuple[str, str]
) -> None:
    core = engine_core(num_blocks=128)
    refusal = core.add_request(request_, A)
    assert refusal is not None
    assert isinstance(refusal.error, OutputError)
    assert (refusal.request_id, refusal.finish_reason) == (request_.request_id, FinishReason.ERROR)
    assert (refusal.error.code, refusal.error.param) == error
    assert not core.has_requests()


def test_a_live_id_is_refused_and_the_first_goes_on() -> None:
    core = engine_core()
    assert core.add_request(engine_core_request("x", [1, 2], max_tokens=1, ignore_eos=True), A) is None
    refusal = core.add_request(engine_core_request("x", [3]), A)
    assert refusal is not None
    assert refusal.error is not None
    assert refusal.error.code == "duplicate_request_id"
    assert [output.finish_reason for output in outputs_of(core)[A]] == [FinishReason.LENGTH]


def test_a_sampler_that_chokes_on_one_request_ends_that_one() -> None:
    core = engine_core(ScriptedExecutor(fail={"1:bad": "no token is possible"}))
    for request_id in ("good", "bad"):
        core.add_request(engine_core_request(request_id, [1, 2], max_tokens=2, ignore_eos=True), A)
    found = outputs_of(core)[A]
    ends = {output.request_id: (output.finish_reason, output.error) for output in found if output.finished}
    assert ends == {
        "good": (FinishReason.LENGTH, None),
        "bad": (FinishReason.ERROR, OutputError("engine_generate_error", "no token is possible")),
    }


def test_an_abort_during_the_step_takes_its_token_away() -> None:
    core = engine_core()
    core.add_request(engine_core_request("x", [1, 2], max_tokens=5), A)

    def abort() -> None:
        core.abort_requests(["x"], A)

    assert outputs_of(core, abort) == {}
    assert core.stats().kv_cache_usage == 0.0


def test_nobody_aborts_another_clients_request() -> None:
    core = engine_core()
    core.add_request(engine_core_request("x", [1, 2], max_tokens=2, ignore_eos=True), A)
    assert core.abort_requests(["x", "unknown"], B) == 0
    assert core.abort_client(B) == 0
    assert core.abort_client(A) == 1
    assert outputs_of(core) == {}


def test_abort_all_answers_everyone() -> None:
    core = engine_core()
    core.add_request(engine_core_request("x", [1, 2]), A)
    core.add_request(engine_core_request("y", [1, 2]), B)
    told = {client: [(o.request_id, o.finish_reason) for o in m.outputs] for client, m in core.abort_all().items()}
    assert told == {A: [("x", FinishReason.ABORT)], B: [("y", FinishReason.ABORT)]}


def test_a_fault_in_building_a_request_ends_that_request_alone() -> None:
    core = engine_core()
    # What no decoder lets through: the checks themselves break on it.
    broken = msgspec.structs.replace(GOOD, request_id="broken", prompt_token_ids=["text"])
    assert core.add_request(GOOD, A) is None
    refusal = core.add_request(broken, A)
    assert refusal is not None
    assert refusal.error == OutputError("engine_generate_error", "the engine could not take this request in")
    assert [output.request_id for output in outputs_of(core)[A]] == ["x"]
