"""How far a list of requests is, for the human who waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from roundhouse.clock import Clock, monotonic
from roundhouse.frontend.outputs import RequestOutput

Advance = Callable[[RequestOutput], None]


@contextmanager
def request_progress(count: int, *, is_shown: bool, clock: Clock = monotonic) -> Iterator[Advance]:
    """A bar over `count` requests on standard error, if that is a terminal; what is yielded takes each that ended."""
    console = Console(stderr=True)
    columns = ("requests", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[speed]}"))
    with Progress(
        *(TextColumn(column) if isinstance(column, str) else column for column in columns),
        console=console,
        disable=not (is_shown and console.is_terminal),
    ) as progress:
        task = progress.add_task("requests", total=count, speed="")
        started, num_tokens = clock(), 0

        def advance(output: RequestOutput) -> None:
            nonlocal num_tokens
            num_tokens += sum(len(choice.token_ids) for choice in output.outputs)
            speed = num_tokens / max(clock() - started, 1e-9)
            progress.update(task, advance=1, speed=f"{speed:.1f} tokens/s")

        yield advance
