"""A target: what reads bytes of a stranger, what may come out of it, and how long and how much memory it may take."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.fuzz.mutation import Mutate

MAX_INPUT_S = 1.0
"""Processor time of one input of up to `mutation.MAX_INPUT_BYTES`."""

MAX_INPUT_GROWTH_BYTES = 256 * 2**20
"""How far one input may raise the process's highest memory use."""


class Surprise(AssertionError):
    """An input did what its target promises that none does."""


@dataclass(frozen=True, slots=True)
class Target:
    """run: returns whether the input was taken, and raises for anything that it should not have led to.

    seeds: real inputs, by name.
    """

    name: str
    run: Callable[[bytes], bool]
    mutate: Mutate
    seeds: Callable[[], Iterable[tuple[str, bytes]]]


def execute(target: Target, data: bytes) -> bool:
    """One input within its bounds. Raises `Surprise`, or whatever the target let out."""
    before_s, before_bytes = time.process_time(), _peak_bytes()
    was_taken = target.run(data)
    took_s, grew_bytes = time.process_time() - before_s, _peak_bytes() - before_bytes
    if took_s > MAX_INPUT_S:
        raise Surprise(f"{len(data)} bytes took {took_s:.2f} s")
    if grew_bytes > MAX_INPUT_GROWTH_BYTES:
        raise Surprise(f"{len(data)} bytes took {grew_bytes / 2**20:.0f} MiB of memory")
    return was_taken


def expect(condition: bool, story: str) -> None:
    """Raises `Surprise`. Not `assert`: what is checked is the world's input."""
    if not condition:
        raise Surprise(story)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
