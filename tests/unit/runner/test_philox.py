import numpy as np
import pytest

from roundhouse.runner.philox import Purpose, gumbels, philox, uniforms

# kat_vectors of Random123: philox4x32, 10 rounds.
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def column(words: list[int]) -> np.ndarray:
    return np.array(words, dtype=np.uint64)[:, None]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_known_answers(counter: list[int], key: list[int], answer: list[int]) -> None:
    assert philox(column(key), column(counter))[:, 0].tolist() == answer


def test_known_answers_side_by_side() -> None:
    counters, keys, answers = (np.array(words, dtype=np.uint64).T for words in zip(*KNOWN_ANSWERS, strict=True))
    np.testing.assert_array_equal(philox(keys, counters), answers)


def test_the_words_of_key_and_counter() -> None:
    seeds = np.array([0x299F31D0_A4093822], dtype=np.uint64)
    words = philox(column([0xA4093822, 0x299F31D0]), column([9, Purpose.ACCEPT, 77, 3]))[:, 0].tolist()
    value = uniforms(seeds, np.array([9]), Purpose.ACCEPT, np.array([77]), np.array([3]))
    assert value.tolist() == [(((words[0] << 21) | (words[1] >> 11)) + 0.5) / 2**53]


def test_uniforms_are_uniform_and_differ_in_every_word() -> None:
    count = 100_000
    zeros, ones = np.zeros(count, dtype=np.int64), np.arange(count)
    seed = np.zeros(count, dtype=np.uint64)
    by_token = uniforms(seed, zeros, Purpose.SAMPLE, ones, zeros)
    by_position = uniforms(seed, ones, Purpose.SAMPLE, zeros, zeros)
    by_child = uniforms(seed, zeros, Purpose.SAMPLE, zeros, ones)
    by_seed = uniforms(ones.astype(np.uint64), zeros, Purpose.SAMPLE, zeros, zeros)
    by_purpose = uniforms(seed, zeros, Purpose.HEAD_OR_TAIL, ones, zeros)
    drawn = [by_token, by_position, by_child, by_seed, by_purpose]
    for values in drawn:
        assert 0.0 < values.min() < 1e-4
        assert 1 - 1e-4 < values.max() < 1.0
        counts = np.histogram(values, bins=20, range=(0, 1))[0]
        # 19 degrees of freedom: 44 is the 0.1 % point.
        assert ((counts - count / 20) ** 2 / (count / 20)).sum() < 44
    assert np.abs(np.corrcoef(drawn) - np.eye(5)).max() < 0.02


def test_gumbels_have_the_mean_and_variance_of_gumbels() -> None:
    count = 200_000
    zeros = np.zeros(count, dtype=np.int64)
    values = gumbels(zeros.astype(np.uint64), zeros, np.arange(count), zeros)
    assert abs(values.mean() - 0.5772) < 0.01
    assert abs(values.var() - np.pi**2 / 6) < 0.03
