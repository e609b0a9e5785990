import json
import os
from pathlib import Path

import pytest

from tests.fuzz.worker import Meter, guarded


def test_a_failure_is_written_down_and_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)
    reader, writer = os.pipe()
    check = guarded(lambda data: 1 // len(data), tmp_path, Meter("blind", writer))
    check(b"x")
    with pytest.raises(Ended):
        check(b"")
    os.close(writer)
    with os.fdopen(reader) as reports:
        (report,) = [json.loads(line) for line in reports]
    assert (report["engine"], report["executions"]) == ("blind", 1)
    crash, story = sorted(tmp_path.iterdir())
    assert (crash.name, crash.read_bytes()) == ("crash-da39a3ee5e6b4b0d3255bfef95601890afd80709", b"")
    assert story.name == f"{crash.name}.txt"
    assert story.read_text().endswith("ZeroDivisionError: integer division or modulo by zero\n")
