from hypothesis import given
from hypothesis import strategies as st

from roundhouse.protocol.limits import BYTES_A_SECOND_FOR_HEARTBEATS, MAX_BYTES_BEFORE_HELLO, MAX_BYTES_UNREAD
from roundhouse.transport.connections import FRAME_OVERHEAD_BYTES, Connections, Cut


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
