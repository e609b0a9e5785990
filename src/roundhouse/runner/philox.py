"""Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).

A number depends on its key and its counter alone: nothing is drawn in order, so nothing that happens to other requests,
or to this one on another engine, can shift it. Known answers are Random123's.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

_ROUNDS = 10
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_WEYL = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_SLICE = 4096
"""Counters at a time: what ten rounds write then stays in a core's cache, three times as fast as all at once."""

_ROUND_STEPS = np.arange(_ROUNDS, dtype=np.uint64)[:, None] * _WEYL


class Purpose(IntEnum):
    """What a number is for: the second word of the counter. Values are part of what makes a stream resumable.

    ACCEPT and RESIDUAL are reserved for speculative decoding.
    """

    HEAD_OR_TAIL = 0
    SAMPLE = 1
    ACCEPT = 2
    RESIDUAL = 3


def philox(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """key: uint64 [2, n] and counter: uint64 [4, n], of 32-bit words → uint64 [4, n] of 32-bit words."""
    out = np.empty_like(counter)
    for start in range(0, counter.shape[1], _SLICE):
        part = slice(start, start + _SLICE)
        out[:, part] = _ten_rounds(key[:, part], counter[:, part])
    return out


def _ten_rounds(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    round_keys = (key[None] + _ROUND_STEPS[:, :, None]) & _LOW
    even, odd = counter[0::2], counter[1::2]
    for round_key in round_keys:
        product = even * _MULTIPLIERS
        even = ((product >> _SHIFT)[::-1] ^ odd) ^ round_key
        odd = (product & _LOW)[::-1]
    out = np.empty_like(counter)
    out[0::2], out[1::2] = even, odd
    return out


def uniforms(
    seeds: np.ndarray, positions: np.ndarray, purpose: Purpose, token_ids: np.ndarray, child_indices: np.ndarray
) -> np.ndarray:
    """float64 [n] in (0, 1), never 0 or 1, one for each of n counters. seeds: uint64 [n]; the others int [n]."""
    key = np.empty((2, len(seeds)), dtype=np.uint64)
    key[0], key[1] = seeds & _LOW, seeds >> _SHIFT
    counter = np.empty((4, len(seeds)), dtype=np.uint64)
    counter[0], counter[1], counter[2], counter[3] = positions, purpose, token_ids, child_indices
    words = philox(key, counter)
    # 53 bits, and half of the last one so that neither end is met.
    return (((words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))) + 0.5) * 2.0**-53


def gumbels(seeds: np.ndarray, positions: np.ndarray, token_ids: np.ndarray, child_indices: np.ndarray) -> np.ndarray:
    """Standard Gumbel noise for the choice among tokens: the argmax of logit + noise is a draw from their softmax."""
    return -np.log(-np.log(uniforms(seeds, positions, Purpose.SAMPLE, token_ids, child_indices)))
