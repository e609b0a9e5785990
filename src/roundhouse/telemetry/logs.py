"""The one format of log lines: `time level logger message key=value …`, on standard error, one line per record.

A record's request is given as `extra={"request_id": …}` and stands at the end. What a client or a peer sent can be
part of a message, so a line break in it is escaped: nobody can write lines that look like ours. A traceback follows
indented.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")

EXTRA_KEYS = ("request_id", "engine")
"""Of `extra`, in the order of the line."""


class LineFormatter(logging.Formatter):
    """Times are UTC with milliseconds."""

    converter = time.gmtime

    def __init__(self, engine: str | None = None) -> None:
        super().__init__()
        self._defaults = {"engine": engine}

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
        extra = "".join(
            f" {key}={value}"
            for key in EXTRA_KEYS
            if (value := getattr(record, key, self._defaults.get(key))) is not None
        )
        line = f"{stamp} {record.levelname} {record.name} {record.getMessage()}{extra}"
        line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
        if record.exc_info:
            story = self.formatException(record.exc_info).replace("\n", "\n    ")
            line = f"{line}\n    {story}"
        return line


def configure_logs(level: str, stream: TextIO | None = None, *, engine: str | None = None) -> None:
    """Sets up the process's only log handler. `level` is one of `LEVELS`; libraries stay at warning and above.

    engine: stands in every line of an engine's process, since several may share one standard error.
    """
    if level not in LEVELS:
        raise ValueError(f"a log level is one of {', '.join(LEVELS)}, got {level!r}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(engine))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("roundhouse").setLevel(level.upper())
