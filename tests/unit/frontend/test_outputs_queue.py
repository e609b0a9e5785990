"""What waits comes out in order; whose bytes wait; and an error that stays."""

import asyncio

import pytest

from roundhouse.frontend.outputs_queue import OutputsQueue
from roundhouse.protocol.errors import EngineDeadError
from roundhouse.protocol.limits import MESSAGE_OVERHEAD_BYTES as OVER
from roundhouse.protocol.messages import EngineCoreOutputs


def outputs(session_id: int, sequence_number: int) -> EngineCoreOutputs:
    return EngineCoreOutputs(session_id=session_id, sequence_number=sequence_number)


def test_outputs_come_in_the_order_of_their_arrival_whoever_sent_them() -> None:
    async def scenario() -> None:
        queue = OutputsQueue()
        sent = [outputs(1, 1), outputs(2, 1), outputs(1, 2)]
        for each in sent:
            queue.put(each, each.session_id, 10)
        assert [await queue.get() for _ in sent] == sent
        assert queue.empty()

    asyncio.run(scenario())


def test_the_bytes_that_wait_are_counted_by_session_until_they_are_taken() -> None:
    async def scenario() -> None:
        queue = OutputsQueue()
        assert queue.put(outputs(1, 1), 1, 100) == 100 + OVER
        assert queue.put(outputs(2, 1), 2, 7) == 7 + OVER
        assert queue.put(outputs(1, 2), 1, 20) == 120 + 2 * OVER
        await queue.get()
        assert queue.put(outputs(1, 3), 1, 3) == 23 + 2 * OVER
        assert queue.put(outputs(2, 2), 2, 1) == 8 + 2 * OVER

    asyncio.run(scenario())


def test_an_answer_of_our_own_belongs_to_nobody() -> None:
    async def scenario() -> None:
        queue = OutputsQueue()
        own = outputs(3, 0)
        assert queue.put(outputs(3, 1), 3, 50) == 50 + OVER
        assert queue.put(own) == 0
        await queue.get()
        assert await queue.get() is own
        assert queue.put(outputs(3, 2), 3, 4) == 4 + OVER

    asyncio.run(scenario())


def test_an_error_comes_after_what_was_there_and_again_each_time() -> None:
    async def scenario() -> None:
        queue = OutputsQueue()
        last, error = outputs(1, 1), EngineDeadError("gone")
        queue.put(last, 1, 10)
        queue.put_error(error)
        assert await queue.get() is last
        for _ in range(3):
            with pytest.raises(EngineDeadError) as raised:
                await queue.get()
            assert raised.value is error
        assert not queue.empty()

    asyncio.run(scenario())


def test_a_consumer_that_gives_up_takes_nothing_along() -> None:
    async def scenario() -> None:
        queue = OutputsQueue()
        consumer = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        consumer.cancel()
        queue.put(outputs(1, 1), 1, 10)
        await asyncio.gather(consumer, return_exceptions=True)
        assert consumer.cancelled()
        assert await queue.get() == outputs(1, 1)

    asyncio.run(scenario())
