from __future__ import annotations

from tests.bench import encryption
from tests.bench.encryption import FIGURES, FRAMES, STAGES, THROUGHPUT, TURNS, WIRE, rates


def test_each_figure_is_there_with_keys_and_without() -> None:
    assert list(THROUGHPUT) == [(stage.name, with_keys) for stage in STAGES for with_keys in (False, True)]
    assert list(WIRE) == [(size, with_keys) for size in FRAMES for with_keys in (False, True)]
    assert (*THROUGHPUT.values(), *WIRE.values()) == FIGURES


def test_no_mesh_has_more_turns_or_better_ones() -> None:
    places = {with_keys: [place for place, turn in enumerate(TURNS) if turn is with_keys] for with_keys in TURNS}
    assert len(places[True]) == len(places[False])
    assert sum(places[True]) == sum(places[False])


def test_a_rate_is_of_all_turns_together() -> None:
    (stage,) = (stage for stage in STAGES if stage.name == "16 streams")
    assert rates(stage, {False: 8.0, True: 16.0}) == {False: 2 * 32 * 128 / 8.0, True: 2 * 32 * 128 / 16.0}


def test_a_turn_of_frames_is_whole_frames() -> None:
    assert [encryption.BYTES_OF_A_TURN % num_bytes for num_bytes in FRAMES.values()] == [0, 0, 0]
