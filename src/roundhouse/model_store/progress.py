"""Telling a waiting human what goes on: a bar on a terminal, plain log lines anywhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

logger = logging.getLogger(__name__)

LOG_EVERY = 0.25
"""Of the total between two log lines of one stage: a pod's log gets five lines a stage, not five thousand."""


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """`done` of `total` bytes of a stage; a total of 0 means that nobody can tell how long it takes."""

    stage: str
    done: int = 0
    total: int = 0


Report = Callable[[ProgressEvent], None]


class ProgressDisplay(Protocol):
    def __call__(self, event: ProgressEvent) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


def console_display(console: Console | None = None) -> ProgressDisplay:
    """The display for standard error, chosen by whether that is a terminal. Shows nothing until the first event."""
    console = console or Console(stderr=True)
    return _BarDisplay(console) if console.is_terminal else _LogDisplay()


class _BarDisplay:
    """The bars go away when every stage is over, so that the next log line starts on a line of its own."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, event: ProgressEvent) -> None:
        if event.stage not in self._tasks:
            self._progress.start()
            self._tasks[event.stage] = self._progress.add_task(event.stage, total=None)
        self._progress.update(self._tasks[event.stage], completed=event.done, total=event.total or None)
        if self._progress.finished:
            self._progress.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()


class _LogDisplay:
    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def __call__(self, event: ProgressEvent) -> None:
        share = event.done / event.total if event.total else 0.0
        last = self._logged.get(event.stage)
        if last is not None and share - last < LOG_EVERY and not (share >= 1.0 > last):
            return
        self._logged[event.stage] = share
        logger.info("%s: %d%%" if event.total else "%s", event.stage, *([round(share * 100)] if event.total else []))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None
