import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundhouse.models.tiles import GRAIN_ELEMENTS, HIGH, LOW, most_even_threads, tile_bounds, tile_height


@pytest.mark.parametrize(("num_rows", "height"), [(1, 8), (8, 8), (9, 32), (32, 32)])
def test_the_lowest_tile_that_holds_the_rows(num_rows: int, height: int) -> None:
    assert tile_height(num_rows, (LOW, HIGH)) == height


@pytest.mark.parametrize(
    ("num_rows", "bounds"),
    [(0, []), (1, [(0, 1)]), (32, [(0, 32)]), (33, [(0, 32), (32, 33)]), (70, [(0, 32), (32, 64), (64, 70)])],
)
def test_no_tile_is_empty_and_only_the_last_is_short(num_rows: int, bounds: list[tuple[int, int]]) -> None:
    assert tile_bounds(num_rows) == bounds


@pytest.mark.parametrize(
    ("limit", "widths", "count"),
    [
        (2, {576, 192, 1536}, 2),
        # 32 rows of 4,864 are 5 grains: five threads would get 31,130 elements, three 51,883.
        (8, {4864}, 4),
        (3, {4864}, 2),
        # 8 rows of 12 are one vector and a half.
        (4, {12}, None),
    ],
)
def test_threads_share_a_tile_in_whole_vectors(limit: int, widths: set[int], count: int | None) -> None:
    assert most_even_threads(limit, widths) == count


@given(limit=st.integers(1, 64), widths=st.sets(st.integers(1, 2048).map(lambda n: 8 * n), min_size=1, max_size=5))
def test_one_thread_always_does_for_widths_of_whole_vectors(limit: int, widths: set[int]) -> None:
    count = most_even_threads(limit, widths)
    assert count is not None
    for size in (height * width for height in (LOW, HIGH) for width in widths):
        used = min(count, -(-size // GRAIN_ELEMENTS))
        assert -(-size // used) % 64 == 0
