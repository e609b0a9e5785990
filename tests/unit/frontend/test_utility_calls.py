"""Calls and their answers: who may answer, who is told that nobody will, and that nothing stays behind."""

import asyncio
import gc
import weakref

import pytest

from roundhouse.frontend.membership import Member
from roundhouse.frontend.utility_calls import UtilityCalls
from roundhouse.protocol.errors import EngineDeadError
from roundhouse.protocol.identity import EngineIndex, SessionId
from roundhouse.protocol.messages import UtilityOutput
from tests.support.mesh import hello


def two_members() -> tuple[Member, Member]:
    a, b = (
        Member(SessionId(i), EngineIndex(i), b"route", hello(name), 2**26, heard_at=0.0) for i, name in enumerate("ab")
    )
    return a, b


def test_each_call_gets_its_own_answer_in_whatever_order() -> None:
    async def scenario() -> None:
        a, b = two_members()
        calls = UtilityCalls()
        opened = [calls.open(a), calls.open(b), calls.open(a)]
        assert [call_id for call_id, _ in opened] == [1, 2, 3]
        for member, call_id in ((a, 3), (b, 2), (a, 1)):
            calls.answer(member, UtilityOutput(call_id, result=call_id * 10))
        assert [await answer for _, answer in opened] == [UtilityOutput(i, result=i * 10) for i in (1, 2, 3)]

    asyncio.run(scenario())


def test_only_the_engine_that_was_asked_may_answer_and_only_once() -> None:
    async def scenario() -> None:
        a, b = two_members()
        calls = UtilityCalls()
        call_id, answer = calls.open(a)
        calls.answer(b, UtilityOutput(call_id, result="of another"))
        calls.answer(a, UtilityOutput(call_id + 1, result="to nothing"))
        assert not answer.done()
        calls.answer(a, UtilityOutput(call_id, result="first"))
        calls.answer(a, UtilityOutput(call_id, result="second"))
        assert await answer == UtilityOutput(call_id, result="first")
        calls.answer(a, UtilityOutput(call_id, result="late"))

    asyncio.run(scenario())


def test_a_lost_engine_fails_its_own_calls_alone() -> None:
    async def scenario() -> None:
        a, b = two_members()
        calls = UtilityCalls()
        (_, of_a), (id_of_b, of_b), (_, also_of_a) = calls.open(a), calls.open(b), calls.open(a)
        error = EngineDeadError("engine a is lost")
        calls.fail(error, a)
        assert [answer.exception() for answer in (of_a, also_of_a)] == [error, error]
        calls.answer(b, UtilityOutput(id_of_b, result="here"))
        assert await of_b == UtilityOutput(id_of_b, result="here")

    asyncio.run(scenario())


def test_at_the_end_every_call_fails_and_what_was_answered_stays() -> None:
    async def scenario() -> None:
        a, b = two_members()
        calls = UtilityCalls()
        (answered_id, answered), (_, of_a), (_, of_b) = calls.open(a), calls.open(a), calls.open(b)
        calls.answer(a, UtilityOutput(answered_id))
        error = EngineDeadError("over")
        calls.fail(error)
        calls.fail(EngineDeadError("again"))
        assert await answered == UtilityOutput(answered_id)
        assert [answer.exception() for answer in (of_a, of_b)] == [error, error]

    asyncio.run(scenario())


def test_an_answer_to_a_caller_that_gave_up_is_dropped() -> None:
    async def scenario() -> None:
        a, _ = two_members()
        calls = UtilityCalls()
        call_id, answer = calls.open(a)
        answer.cancel()
        calls.answer(a, UtilityOutput(call_id))
        calls.fail(EngineDeadError("over"))
        with pytest.raises(asyncio.CancelledError):
            await answer

    asyncio.run(scenario())


def test_a_call_that_is_over_is_forgotten() -> None:
    async def scenario() -> None:
        a, _ = two_members()
        calls = UtilityCalls()
        call_id, answer = calls.open(a)
        calls.answer(a, UtilityOutput(call_id))
        await asyncio.sleep(0)  # lets the answer tell that it is there
        reference = weakref.ref(answer)
        del answer
        gc.collect()
        assert reference() is None

    asyncio.run(scenario())
