import io
import logging
import sys
from collections.abc import Iterator

import pytest

from roundhouse.telemetry.logs import LineFormatter, configure_logs


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("roundhouse")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def record(message, *args, exc_info=None, **extra):
    made = logging.LogRecord("roundhouse.x", logging.WARNING, __file__, 1, message, args, exc_info)
    made.created, made.msecs = 1_800_000_000.0, 42.0
    made.__dict__.update(extra)
    return made


def test_a_line():
    line = LineFormatter().format(record("lost %d of %s", 2, "it", request_id="cmpl-7"))
    assert line == "2027-01-15T08:00:00.042Z WARNING roundhouse.x lost 2 of it request_id=cmpl-7"


def test_nobody_can_write_lines_that_look_like_ours():
    line = LineFormatter().format(record("bad\r\n2027 INFO x \x1b[31m é 🙂", request_id="a\nb"))
    assert line.endswith(r"bad\r\n2027 INFO x \x1b[31m é 🙂 request_id=a\nb")


def test_a_traceback_follows_indented():
    try:
        raise ValueError("two\nlines")
    except ValueError:
        first, *rest = LineFormatter().format(record("failed", exc_info=sys.exc_info())).split("\n")
    assert first.endswith("failed")
    assert all(line.startswith("    ") for line in rest)
    assert "ValueError: two" in rest[-2]


def test_configured_once_whatever_was_before(restored_logging):
    stream = io.StringIO()
    configure_logs("info", stream)
    configure_logs("debug", stream)
    logging.getLogger("roundhouse.x").debug("ours")
    logging.getLogger("library").info("theirs")
    assert [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()] == ["DEBUG roundhouse.x ours"]


def test_an_unknown_level_is_refused():
    with pytest.raises(ValueError, match="debug, info"):
        configure_logs("loud")
