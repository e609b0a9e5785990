"""Prompts of an exact number of tokens, no two with a common beginning, so that no prefix cache can help anyone."""

from __future__ import annotations

import random
import re
from pathlib import Path

from tokenizers import Tokenizer

_WORD = re.compile("Ġ[a-z]{3,}")
"""A whole small-lettered word behind a space, in the spelling of byte-level vocabularies."""


def word_ids(folder: Path) -> list[int]:
    """The ids of all plain words in the model's vocabulary, in order."""
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return sorted(token_id for token, token_id in vocabulary.items() if _WORD.fullmatch(token))


def make_prompts(words: list[int], num_prompts: int, num_tokens: int, *, seed: str) -> list[list[int]]:
    """Random words, the same for the same arguments. The first words differ, as long as there are enough of them."""
    source = random.Random(f"{seed} {num_prompts} {num_tokens}")
    firsts = source.sample(words, num_prompts) if num_prompts <= len(words) else source.choices(words, k=num_prompts)
    return [[first, *source.choices(words, k=num_tokens - 1)] for first in firsts]
