"""Who may be who: a table of keys against Hellos."""

import pytest

from roundhouse.frontend.guard import Denial, MeshGuard
from roundhouse.protocol.identity import WITHOUT_KEYS, EngineIdentity, Peer
from roundhouse.transport.keys import FrontendKeys, Grant, KeyPair
from tests.support.mesh import hello

ANY = Grant(EngineIdentity("engine-0"), "key-0")
BOUND = Grant(EngineIdentity("engine-1"), "key-1", 7)
SERVERS = {1: KeyPair("s1", ""), 2: KeyPair("s2", "")}


def keys(*grants: Grant) -> FrontendKeys:
    return FrontendKeys(SERVERS, {grant.public: grant for grant in grants})


def of(grant: Grant, generation: int = 1) -> Peer:
    return Peer(generation, grant.user_id)


REVOKED = Denial("revoked", "that key is no longer allowed")


@pytest.mark.parametrize(
    ("peer", "identity", "epoch", "expected"),
    [
        (of(ANY), "engine-0", (0, 5), None),
        (of(ANY), "engine-0", (9, 5), None),
        (of(ANY, 2), "engine-0", (0, 5), None),
        (of(ANY, 3), "engine-0", (0, 5), REVOKED),
        (of(ANY), "engine-1", (7, 5), Denial("identity", "that key is engine engine-0's, not engine-1's")),
        (of(BOUND), "engine-1", (7, 5), None),
        (of(BOUND), "engine-1", (8, 5), Denial("epoch", "that key is for epoch 7, not 8")),
        (of(BOUND), "engine-0", (7, 5), Denial("identity", "that key is engine engine-1's, not engine-0's")),
        (Peer(1, "engine-0"), "engine-0", (0, 5), REVOKED),
        (Peer(1, None), "engine-0", (0, 5), REVOKED),
        (WITHOUT_KEYS, "engine-0", (0, 5), REVOKED),
    ],
)
def test_a_hello_is_its_keys_own(peer: Peer, identity: str, epoch: tuple[int, int], expected: Denial | None) -> None:
    guard = MeshGuard(keys(ANY, BOUND))
    assert guard.check_hello(peer, hello(identity, epoch=epoch)) == expected
    counted = {} if expected is None else {expected.fault: 1}
    assert guard.num_refused == {"revoked": 0, "identity": 0, "epoch": 0, **counted}


def test_one_of_two_keys_of_an_identity_is_revoked() -> None:
    other = Grant(ANY.identity, "key-2")
    guard = MeshGuard(keys(ANY, other))
    guard.set_keys(keys(other))
    assert [guard.knows(of(grant)) for grant in (ANY, other)] == [False, True]
    assert guard.check_hello(of(ANY), hello()) == REVOKED
    assert guard.check_hello(of(other), hello()) is None


def test_stray_frames_are_counted_by_what_is_wrong_with_them() -> None:
    guard = MeshGuard(keys(ANY))
    assert [guard.count_stray(peer) for peer in (of(ANY), of(BOUND), of(BOUND))] == [True] * 3
    assert guard.num_dropped == {"user_id": 1, "revoked": 2}


def test_without_keys_everybody_passes() -> None:
    guard = MeshGuard(None)
    assert guard.knows(WITHOUT_KEYS)
    assert guard.check_hello(WITHOUT_KEYS, hello("anybody")) is None
    assert guard.count_stray(WITHOUT_KEYS) is False
