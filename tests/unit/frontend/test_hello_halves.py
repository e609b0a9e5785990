import msgspec
import pytest

from roundhouse.frontend.hello_halves import HALF_S, Greeting, HelloHalves, Mismatch
from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.identity import Peer
from roundhouse.protocol.limits import MAX_ENGINES, MAX_HELLO_HALVES_PER_ENGINE
from tests.support.mesh import hello, routing_id_of

HELLO = hello(nonce=1)
ROUTE = routing_id_of(HELLO)


def test_either_half_may_come_first() -> None:
    halves = HelloHalves()
    assert halves.on_router(ROUTE, HELLO, 0.0) is None
    assert halves.on_pull(HELLO, 0.1) == Greeting(ROUTE, HELLO)
    assert halves.on_pull(HELLO, 0.2) is None
    assert halves.on_router(ROUTE, HELLO, 0.3) == Greeting(ROUTE, HELLO)


def test_another_nonce_is_another_session() -> None:
    halves = HelloHalves()
    assert halves.on_router(ROUTE, HELLO, 0.0) is None
    assert halves.on_pull(hello(nonce=2), 0.0) is None


def test_halves_that_differ_are_a_mismatch() -> None:
    halves = HelloHalves()
    halves.on_router(ROUTE, HELLO, 0.0)
    assert halves.on_pull(hello(nonce=1, model="other"), 0.0) == Mismatch(ROUTE)


def test_a_hello_has_to_be_its_routing_ids_own() -> None:
    for stranger in (hello(nonce=2), hello("engine-1", nonce=1)):
        with pytest.raises(MalformedFrame):
            HelloHalves().on_router(ROUTE, stranger, 0.0)


def test_the_same_half_twice_is_malformed_and_the_first_stays() -> None:
    halves = HelloHalves()
    halves.on_pull(HELLO, 0.0)
    with pytest.raises(MalformedFrame):
        halves.on_pull(hello(nonce=1, model="other"), 0.0)
    assert halves.on_router(ROUTE, HELLO, 0.0) == Greeting(ROUTE, HELLO)


def test_a_half_waits_for_a_while_only() -> None:
    halves = HelloHalves()
    halves.on_router(ROUTE, HELLO, 0.0)
    assert halves.on_pull(HELLO, HALF_S) is None


def test_no_more_than_the_limit_wait() -> None:
    halves = HelloHalves()
    halves.on_router(ROUTE, HELLO, 0.0)
    for number in range(MAX_ENGINES):
        halves.on_pull(hello(f"engine-{number + 1}"), 0.0)
    assert halves.on_pull(HELLO, 0.0) is None


def test_halves_of_two_peers_never_meet() -> None:
    halves = HelloHalves()
    one, by_another_key, by_another_server = Peer(1, "a"), Peer(1, "b"), Peer(2, "a")
    assert halves.on_router(ROUTE, HELLO, 0.0, one) is None
    assert [halves.on_pull(HELLO, 0.0, peer) for peer in (by_another_key, by_another_server)] == [None, None]
    assert halves.on_pull(HELLO, 0.0, one) == Greeting(ROUTE, HELLO, one)


def test_one_engine_pushes_nobody_out() -> None:
    halves = HelloHalves()
    halves.on_router(ROUTE, HELLO, 0.0)
    for number in range(2 * MAX_ENGINES):
        storm = hello("engine-1", nonce=1, epoch=(1, number))
        nonce = number.to_bytes(16, "big")
        assert halves.on_pull(msgspec.structs.replace(storm, nonce=nonce), 0.0, Peer(1, "b")) is None
    assert halves.num_over == 2 * MAX_ENGINES - MAX_HELLO_HALVES_PER_ENGINE
    assert halves.on_pull(HELLO, 0.0) == Greeting(ROUTE, HELLO)
    late = hello("engine-1", nonce=9)
    assert halves.on_pull(late, HALF_S, Peer(1, "b")) is None
    assert halves.on_router(routing_id_of(late), late, HALF_S, Peer(1, "b")) == Greeting(
        routing_id_of(late), late, Peer(1, "b")
    )
