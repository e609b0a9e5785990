import logging

import pytest

from roundhouse.transport.malformed import MalformedCounter
from roundhouse.transport.told import INTERVAL_S


def test_all_are_counted_and_one_a_minute_of_each_peer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    counter = MalformedCounter()
    with caplog.at_level(logging.WARNING):
        for now in (0.0, 1.0, INTERVAL_S - 0.1, INTERVAL_S, INTERVAL_S + 1):
            counter.count(ValueError(f"at {now:g}"), "engine-0", now)
        counter.count(ValueError("another"), "engine-1", INTERVAL_S + 2)
    assert counter.total == 6
    assert caplog.messages == [
        "dropped a malformed message of engine-0, number 1 of all: at 0",
        "dropped a malformed message of engine-0, number 4 of all: at 60",
        "dropped a malformed message of engine-1, number 6 of all: another",
    ]
