"""Tiles: the few heights of a batch that deterministic execution knows, and how threads may share one.

A row's bits follow from the shape of the call it is part of. So every call has one of two heights, and whoever has
fewer rows fills up with rows that nobody reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

LOW, HIGH = 8, 32
"""Rows of a tile. The low one is for the decode of a few streams, which it makes about twice as fast."""

GRAIN_ELEMENTS = 32768
"""Torch splits an elementwise operation over more threads with every so many elements (`at::internal::GRAIN_SIZE`)."""

VECTOR_ELEMENTS = 64
"""Elements that a vectorised loop of torch takes at a time, of the smallest type served. What is left over goes one by
one through other instructions, with other last bits."""


def tile_height(num_rows: int, heights: Sequence[int]) -> int:
    """The lowest of `heights`, ascending, that holds `num_rows`."""
    return next(height for height in heights if height >= num_rows)


def tile_bounds(num_rows: int) -> list[tuple[int, int]]:
    """(first row, end) of each tile; only the last may hold less than `HIGH` rows."""
    return list(pairwise([*range(0, num_rows, HIGH), num_rows]))


def most_even_threads(limit: int, widths: Iterable[int]) -> int | None:
    """The most threads up to `limit` that share every tile in whole vectors; None when not even one does.

    widths: elements of a row in the model's layers. With such a count no element's result depends on the row it is in.
    """
    sizes = sorted({height * width for width in widths for height in (LOW, HIGH)})
    counts = (count for count in range(limit, 0, -1) if all(_is_even(size, count) for size in sizes))
    return next(counts, None)


def _is_even(num_elements: int, num_threads: int) -> bool:
    parts = min(num_threads, -(-num_elements // GRAIN_ELEMENTS))
    return num_elements % VECTOR_ELEMENTS == 0 and -(-num_elements // parts) % VECTOR_ELEMENTS == 0
