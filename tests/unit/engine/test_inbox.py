from __future__ import annotations

from roundhouse.engine.inbox import Inbox, ShutdownAsked
from roundhouse.protocol.identity import ClientIndex
from roundhouse.protocol.messages import AbortRequests, EngineCoreRequest
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.transport.items import Backlog, Received

CLIENT = ClientIndex(1)


def add(request_id: str) -> Received:
    return Received(CLIENT, EngineCoreRequest(request_id, [1], SamplingParams(), 0.0))


def abort(request_id: str) -> Received:
    return Received(CLIENT, AbortRequests([request_id]))


def test_everything_comes_out_in_order() -> None:
    inbox = Inbox(Backlog())
    items = [add("a"), abort("a"), add("b"), ShutdownAsked()]
    for item in items:
        inbox.put(item)
    assert inbox.get() == items[0]
    assert inbox.drain() == items[1:]
    assert inbox.drain() == []


def test_an_abort_can_be_taken_early_and_comes_again_in_order() -> None:
    inbox = Inbox(Backlog())
    for item in (add("a"), abort("b")):
        inbox.put(item)
    assert inbox.drain_aborts() == [abort("b")]
    assert inbox.drain_aborts() == []
    assert inbox.drain() == [add("a"), abort("b")]


def test_an_abort_taken_in_order_is_not_taken_early_again() -> None:
    """Or it would hit the request that reuses its id."""
    inbox = Inbox(Backlog())
    for item in (abort("a"), add("a")):
        inbox.put(item)
    assert inbox.drain() == [abort("a"), add("a")]
    assert inbox.drain_aborts() == []
