from hypothesis import given
from hypothesis import strategies as st

from roundhouse.protocol.limits import (
    BYTES_A_SECOND_FOR_HEARTBEATS,
    MAX_BYTES_BEFORE_HELLO,
    MAX_BYTES_UNREAD,
    MAX_CONNECTIONS_PER_PEER,
)
from roundhouse.transport.connections import DROPPED, FRAME_OVERHEAD_BYTES, TAKEN, Connections, Cut, Delivery


def known(*fds: int, most: int = 10) -> Connections:
    connections = Connections(most)
    for fd in fds:
        assert connections.accepted(fd, 0.0) is None
        connections.delivered(fd, 100, 2)
    return connections


def test_one_too_many_ends_the_oldest_that_said_nothing() -> None:
    connections = known(1, most=3)
    assert [connections.accepted(fd, 0.0) for fd in (2, 3, 4)] == [None, None, Cut(2, "connections")]
    assert len(connections) == 3


def test_what_was_cut_is_remembered_until_it_has_ended() -> None:
    connections = known(1, most=1)
    assert connections.accepted(2, 0.0) == Cut(2, "connections")
    assert connections.sampled(1, 2 * MAX_BYTES_UNREAD, 0.0) == Cut(1, "bytes_unread")
    assert [connections.ended(fd) for fd in (1, 2)] == [True, False]


def test_when_all_are_known_the_new_one_goes() -> None:
    connections = known(1, 2, 3, most=3)
    assert connections.accepted(4, 0.0) == Cut(4, "connections")
    assert [connections.is_known(fd) for fd in (1, 2, 3, 4)] == [True, True, True, False]


def test_a_descriptor_that_is_used_again_is_another_connection() -> None:
    connections = known(1)
    assert connections.ended(1)
    assert connections.accepted(1, 1.0) is None
    assert not connections.is_known(1)
    assert not connections.ended(1)


def test_one_that_is_not_counted_may_be_an_engines() -> None:
    assert Connections(1).ended(7)


def test_no_more_than_a_hello_before_a_message() -> None:
    connections = Connections(1)
    connections.accepted(1, 0.0)
    assert connections.sampled(1, MAX_BYTES_BEFORE_HELLO, 0.0) is None
    assert connections.sampled(1, MAX_BYTES_BEFORE_HELLO + 1, 0.0) == Cut(1, "bytes_before_hello")
    assert connections.sampled(1, MAX_BYTES_BEFORE_HELLO + 2, 0.0) is None


def test_a_message_that_never_ends() -> None:
    connections = known(1)
    assert connections.sampled(1, MAX_BYTES_UNREAD, 0.0) is None
    assert connections.sampled(1, MAX_BYTES_UNREAD + 400, 0.0) == Cut(1, "bytes_unread")


def test_nobody_saves_up_for_later() -> None:
    connections = known(1)
    connections.delivered(1, 10 * MAX_BYTES_UNREAD, 1)
    assert connections.sampled(1, 1000, 0.0) is None
    assert connections.sampled(1, 1001 + MAX_BYTES_UNREAD, 0.0) == Cut(1, "bytes_unread")


def test_a_month_of_heartbeats_ends_nothing() -> None:
    connections = known(1)
    per_sample = BYTES_A_SECOND_FOR_HEARTBEATS * 0.65 * 60
    for minute in range(60 * 24 * 30):
        assert connections.sampled(1, int(minute * per_sample), minute * 60.0) is None


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2**20)), max_size=300), st.sampled_from([11, 42]))
def test_messages_that_were_read_are_never_too_many(messages: list[tuple[int, int]], overhead: int) -> None:
    assert overhead < FRAME_OVERHEAD_BYTES
    connections, received = known(1), 0
    for number, (num_frames, nbytes) in enumerate(messages):
        received += nbytes + num_frames * overhead
        connections.delivered(1, nbytes, num_frames)
        assert connections.sampled(1, received, float(number)) is None


def test_all_have_their_turn() -> None:
    connections = known(*range(5))
    assert [connections.to_sample(2) for _ in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]
    connections.ended(2)
    assert connections.to_sample(2) == [3]


def of_peer(user_id: str, fds: range) -> Connections:
    connections = Connections(100)
    for fd in fds:
        connections.accepted(fd, 0.0)
        assert connections.delivered(fd, 100, 2, user_id) == TAKEN
    return connections


FULL = range(MAX_CONNECTIONS_PER_PEER)
NEXT = MAX_CONNECTIONS_PER_PEER


def test_of_too_many_of_one_key_the_newest_goes() -> None:
    connections = of_peer("thief", FULL)
    for fd in (NEXT, NEXT + 1):
        connections.accepted(fd, 0.0)
    over = Delivery(False, Cut(NEXT, "connections_per_peer", "thief"))
    assert connections.delivered(NEXT, 100, 2, "thief") == over
    assert connections.delivered(NEXT + 1, 100, 2, "honest") == TAKEN
    assert len(connections) == MAX_CONNECTIONS_PER_PEER + 1
    assert connections.delivered(0, 100, 2, "thief") == TAKEN


def test_one_that_ended_makes_room_for_the_next_of_its_key() -> None:
    connections = of_peer("engine", FULL)
    for fd in range(NEXT, 100):
        connections.ended(fd - NEXT)
        connections.accepted(fd, 0.0)
        assert connections.delivered(fd, 100, 2, "engine") == TAKEN
    assert len(connections) == MAX_CONNECTIONS_PER_PEER


def test_without_keys_nobody_can_be_told_from_another() -> None:
    connections = known(*range(MAX_CONNECTIONS_PER_PEER + 1))
    assert connections.delivered(0, 100, 2) == TAKEN


def test_nothing_is_taken_of_what_was_cut_until_its_number_is_used_again() -> None:
    connections = of_peer("thief", FULL)
    connections.accepted(NEXT, 0.0)
    connections.delivered(NEXT, 100, 2, "thief")
    assert connections.delivered(NEXT, 100, 2, "thief") == DROPPED
    connections.ended(NEXT)
    assert connections.delivered(NEXT, 100, 2, "thief") == DROPPED
    connections.accepted(NEXT, 1.0)
    # What still waits of the one before costs the new one nothing.
    assert connections.delivered(NEXT, 100, 2, "thief") == DROPPED
    assert not connections.is_known(NEXT)
    assert connections.delivered(NEXT, 100, 2, "honest") == TAKEN
    assert connections.delivered(NEXT, 100, 2, "thief") == DROPPED
    assert connections.is_known(NEXT)


def test_a_number_that_was_anothers_becomes_its_own() -> None:
    connections = of_peer("thief", FULL)
    connections.ended(0)
    connections.accepted(0, 0.0)
    assert connections.delivered(0, 100, 2, "thief") == TAKEN
    assert connections.delivered(0, 100, 2, "honest") == TAKEN
    assert connections.delivered(0, 100, 2, "thief") == TAKEN
    connections.accepted(NEXT, 0.0)
    assert connections.delivered(NEXT, 100, 2, "thief") == TAKEN


def test_a_key_that_is_allowed_no_longer_loses_its_connections() -> None:
    connections = of_peer("thief", range(2))
    connections.accepted(2, 0.0)
    connections.accepted(3, 0.0)
    connections.delivered(3, 100, 2, "honest")
    assert connections.set_allowed({"honest"}) == [Cut(fd, "revoked", "thief") for fd in range(2)]
    assert connections.delivered(0, 100, 2, "thief") == DROPPED
    # One that had not spoken yet is told by its first message.
    assert connections.delivered(2, 100, 2, "thief") == Delivery(False, Cut(2, "revoked", "thief"))
    assert connections.delivered(3, 100, 2, "honest") == TAKEN
    assert connections.set_allowed({"honest", "thief"}) == []


@given(st.lists(st.tuples(st.sampled_from("aeds"), st.integers(0, 30), st.sampled_from(["x", "y"])), max_size=300))
def test_no_key_ever_has_more_than_its_share(events: list[tuple[str, int, str]]) -> None:
    connections, taken = Connections(20), dict[int, str]()
    for kind, fd, user_id in events:
        cut = None
        match kind:
            case "a":
                cut = connections.accepted(fd, 0.0)
                taken.pop(fd, None)
            case "e":
                connections.ended(fd)
                taken.pop(fd, None)
            case "d":
                is_taken, cut = connections.delivered(fd, 1, 1, user_id)
                if is_taken and connections.is_known(fd):
                    taken.setdefault(fd, user_id)
            case _:
                for each in connections.set_allowed({user_id}):
                    taken.pop(each.fd, None)
                connections.set_allowed({"x", "y"})
        if cut is not None:
            taken.pop(cut.fd, None)
        counts = connections._num_of
        assert all(0 < number <= MAX_CONNECTIONS_PER_PEER for number in counts.values())
        assert sum(counts.values()) == sum(connections.is_known(each) for each in range(31))
