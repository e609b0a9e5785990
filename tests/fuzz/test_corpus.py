"""Every input of the corpus, those that once failed among them, and a thousand changes of them, the same each time.
`make fuzz` searches further.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.catalogue import CORPUS, PLACES, inputs_of, load
from tests.fuzz.target import execute

INPUTS = [(name, file) for name in PLACES for file in inputs_of(name)]


@pytest.mark.parametrize("name", PLACES)
def test_the_corpus_holds_every_seed_and_a_target_takes_its_seeds(name: str) -> None:
    target, inputs = load(name), inputs_of(name)
    seeds = [seed for seed, _ in target.seeds()]
    assert {seed: execute(target, inputs[seed]) for seed in seeds} == dict.fromkeys(seeds, True)


@pytest.mark.parametrize(("name", "file"), INPUTS, ids=map("/".join, INPUTS))
def test_an_input_of_the_corpus(name: str, file: str) -> None:
    execute(load(name), (CORPUS / name / file).read_bytes())


@pytest.mark.parametrize("name", PLACES)
def test_changes_of_the_corpus(name: str) -> None:
    target, inputs = load(name), list(inputs_of(name).values())

    @settings(max_examples=150, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(inputs), st.integers(0, 2**32), st.integers(1, 4))
    def check(data: bytes, seed: int, num_changes: int) -> None:
        rng = Random(seed)
        for _ in range(num_changes):
            data = target.mutate(data, rng)
        execute(target, data)

    check()
