from __future__ import annotations

from itertools import product

import msgspec
import pytest

from roundhouse.protocol.block_hash import root_hash
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.machine import InvalidTransition, Machine
from roundhouse.protocol.sampling import FinishReason
from roundhouse.scheduler.request import (
    ENDINGS,
    FINISH_REASONS,
    FINISHED,
    TABLE,
    Abort,
    Fail,
    Preempt,
    ReachLength,
    Request,
    RequestStatus,
    Schedule,
    Stop,
    engine_request_id,
)
from tests.support.builders import engine_core_request, request

EVENTS = (Schedule, Preempt, Stop, ReachLength, Abort, Fail)


@pytest.mark.parametrize(("status", "event"), list(product(RequestStatus, EVENTS)))
def test_every_pair_is_in_the_table_or_a_bug(status: RequestStatus, event: type) -> None:
    machine = Machine("a", TABLE, status)
    if (status, event) in TABLE:
        assert machine.move(event) == (status, TABLE[status, event])
    else:
        with pytest.raises(InvalidTransition):
            machine.move(event)
        assert machine.state is status


def test_finished_is_final_and_has_one_reason() -> None:
    assert {status for status in RequestStatus if status.name.startswith("FINISHED")} == FINISHED
    assert not FINISHED & {status for status, _ in TABLE}
    for reason, event in ENDINGS.items():
        assert {FINISH_REASONS[after] for (_, e), after in TABLE.items() if e is event} == {reason}


def test_every_live_request_can_be_aborted_and_failed() -> None:
    for status in set(RequestStatus) - FINISHED:
        assert (status, Abort) in TABLE
        assert (status, Fail) in TABLE


def test_is_made_from_what_the_frontend_sent() -> None:
    message = engine_core_request(
        "r", [5, 6, 7], outputs=[8], priority=2, attempt=3, child_index=1, cache_salt="s", arrival_time=9.0
    )
    made = Request.from_engine_core_request(message, ClientIndex(4), seed=-1)
    assert (made.request_id, made.external_request_id, made.client_index) == ("4:r", "r", 4)
    assert (made.token_ids, made.num_prompt_tokens, made.num_output_tokens) == ([5, 6, 7, 8], 3, 1)
    assert made.output_token_ids == [8]
    assert (made.priority, made.attempt, made.child_index, made.arrival_time) == (2, 3, 1, 9.0)
    assert made.seed == 2**64 - 1
    assert made.root_hash == root_hash(cache_salt="s")
    assert (made.status, made.is_finished, made.num_computed_tokens) == (RequestStatus.WAITING, False, 0)


def test_owns_its_tokens() -> None:
    message = engine_core_request(prompt=[5, 6])
    made = Request.from_engine_core_request(message, ClientIndex(0), 0)
    made.token_ids.append(7)
    assert message.prompt_token_ids == [5, 6]


def test_all_that_ends_it_is_one_set() -> None:
    assert request(stop_token_ids=[3, 4], eos_token_id=2).stop_token_ids == {2, 3, 4}
    assert request(stop_token_ids=[3, 4], eos_token_id=2, ignore_eos=True).stop_token_ids == {3, 4}
    assert request(eos_token_id=None).stop_token_ids == frozenset()


def test_what_cannot_run_is_refused() -> None:
    message = engine_core_request()
    for wrong, told in (
        (msgspec.structs.replace(message, sampling_params=None), "sampling_params are needed"),
        (msgspec.structs.replace(message, prompt_token_ids=[]), "may not be empty"),
        (msgspec.structs.replace(message, arrival_time=float("nan")), "arrival_time"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            Request.from_engine_core_request(wrong, ClientIndex(0), 0)


def test_two_clients_with_the_same_id_have_two_requests() -> None:
    assert engine_request_id("a", ClientIndex(1)) != engine_request_id("a", ClientIndex(2))
    assert engine_request_id("2:a", ClientIndex(1)) != engine_request_id("a", ClientIndex(12))


def test_reasons_on_the_wire_are_covered_but_for_repetition() -> None:
    assert set(ENDINGS) == set(FinishReason) - {FinishReason.REPETITION}
