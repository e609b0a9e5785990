import select
from collections.abc import Iterator

import pytest

from roundhouse.transport.mailbox import Mailbox


@pytest.fixture
def mailbox() -> Iterator[Mailbox[int]]:
    mailbox: Mailbox[int] = Mailbox()
    yield mailbox
    mailbox.close()


def is_readable(mailbox: Mailbox[int]) -> bool:
    return bool(select.select([mailbox.fileno()], [], [], 0)[0])


def test_it_is_readable_while_something_waits(mailbox: Mailbox[int]) -> None:
    assert (is_readable(mailbox), mailbox.take()) == (False, [])
    mailbox.post(1)
    mailbox.post(2)
    assert is_readable(mailbox)
    assert mailbox.take() == [1, 2]
    assert (is_readable(mailbox), mailbox.take()) == (False, [])


def test_a_post_after_the_end_is_harmless(mailbox: Mailbox[int]) -> None:
    mailbox.close()
    mailbox.post(1)
    mailbox.close()
