import logging

import pytest

from roundhouse.transport.malformed import LOG_INTERVAL_S, MalformedCounter


def test_all_are_counted_and_one_a_minute_is_told(caplog: pytest.LogCaptureFixture) -> None:
    counter = MalformedCounter()
    with caplog.at_level(logging.WARNING):
        for now in (0.0, 1.0, LOG_INTERVAL_S - 0.1, LOG_INTERVAL_S, LOG_INTERVAL_S + 1):
            counter.count(ValueError(f"at {now:g}"), "engine-0", now)
    assert counter.total == 5
    assert caplog.messages == [
        "dropped 1 malformed message(s), the last one from engine-0: at 0",
        "dropped 3 malformed message(s), the last one from engine-0: at 60",
    ]
