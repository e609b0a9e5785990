import pytest

from roundhouse.frontend.mesh_limits import MeshLimits, check_hello_size
from roundhouse.protocol.errors import MalformedFrame
from roundhouse.protocol.identity import WITHOUT_KEYS, Peer
from roundhouse.protocol.limits import HELLO_BURST, MAX_HELLO_BYTES
from tests.support.mesh import hello


def test_a_storm_of_one_peer_leaves_the_others_their_hellos(caplog: pytest.LogCaptureFixture) -> None:
    limits, storm = MeshLimits(), Peer(1, "key/*/engine-1")
    taken = [limits.may_greet(storm, hello("engine-1", nonce=number % 256), 0.0) for number in range(1000)]
    assert taken == [True] * HELLO_BURST + [False] * (1000 - HELLO_BURST)
    assert limits.may_greet(Peer(1, "key/*/engine-0"), hello(), 0.0)
    assert caplog.messages == ["dropped a Hello of key/*/engine-1: it sends too many"]
    assert limits.counters(3, {"connections": 2}) == {
        "hello_rate": 1000 - HELLO_BURST,
        "hello_halves": 3,
        "connections": 2,
    }


def test_without_keys_the_identity_is_the_peer() -> None:
    limits = MeshLimits()
    for _ in range(HELLO_BURST):
        limits.may_greet(WITHOUT_KEYS, hello("engine-1"), 0.0)
    assert not limits.may_greet(WITHOUT_KEYS, hello("engine-1"), 0.0)
    assert limits.may_greet(WITHOUT_KEYS, hello("engine-2"), 0.0)


def test_a_hello_is_small() -> None:
    check_hello_size([b"\x02", bytes(MAX_HELLO_BYTES - 1)])
    check_hello_size([b"\x00", bytes(MAX_HELLO_BYTES)])
    with pytest.raises(MalformedFrame):
        check_hello_size([b"\x02", bytes(MAX_HELLO_BYTES)])
    with pytest.raises(MalformedFrame):
        check_hello_size([memoryview(b"\x02"), memoryview(bytes(10)), memoryview(bytes(MAX_HELLO_BYTES))])
