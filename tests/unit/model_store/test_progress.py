import io
import logging

import pytest
from rich.console import Console

from roundhouse.model_store.progress import ProgressEvent, console_display


def test_a_log_gets_a_line_per_quarter(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with console_display(Console(file=io.StringIO())) as display:
        display(ProgressEvent("waiting"))
        display(ProgressEvent("waiting"))
        for done in range(101):
            display(ProgressEvent("converting", done, 100))
    assert caplog.messages == [
        "waiting",
        "converting: 0%",
        "converting: 25%",
        "converting: 50%",
        "converting: 75%",
        "converting: 100%",
    ]


def test_a_terminal_gets_a_bar() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    with console_display(console) as display:
        display(ProgressEvent("converting", 1, 4))
        display(ProgressEvent("converting", 4, 4))
    assert "converting" in out.getvalue()
    assert "100%" in out.getvalue()


def test_a_bar_is_gone_before_the_next_line_and_comes_back_for_the_next_stage() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    with console_display(console) as display:
        display(ProgressEvent("loading", 4, 4))
        out.write("LINE")
        display(ProgressEvent("more", 1, 4))
    before, after = out.getvalue().split("LINE")
    assert before.endswith("\x1b[2K"), "the last thing before the line clears the bar"
    assert "more" in after


def test_nothing_is_shown_when_nothing_is_done() -> None:
    out = io.StringIO()
    with console_display(Console(file=out, force_terminal=True)):
        pass
    assert out.getvalue() == ""
