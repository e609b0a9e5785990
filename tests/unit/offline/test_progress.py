"""Nothing is written where nobody watches."""

import pytest

from roundhouse.frontend.outputs import CompletionOutput, RequestOutput
from roundhouse.offline.progress import request_progress


@pytest.mark.parametrize("is_shown", [True, False])
def test_silent_without_a_terminal(is_shown: bool, capsys: pytest.CaptureFixture[str]) -> None:
    output = RequestOutput("a", None, [1], [CompletionOutput(0, "x", [1])], finished=True)
    with request_progress(2, is_shown=is_shown, clock=lambda: 0.0) as advance:
        advance(output)
        advance(output)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    now = iter([0.0, 2.0])
    output = RequestOutput("a", None, [1], [CompletionOutput(0, "x", [1, 2, 3])], finished=True)
    with request_progress(1, is_shown=True, clock=lambda: next(now)) as advance:
        advance(output)
    shown = capsys.readouterr().err
    assert "1/1" in shown
    assert "1.5 tokens/s" in shown
