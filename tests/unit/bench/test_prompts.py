from __future__ import annotations

from pathlib import Path

from tests.bench.prompts import make_prompts, word_ids
from tests.unit.model_store.tiny import tokenizer

WORDS = list(range(1000, 2000))


def test_prompts_have_their_length_and_no_common_beginning() -> None:
    prompts = make_prompts(WORDS, 64, 128, seed="a")
    assert [len(prompt) for prompt in prompts] == [128] * 64
    assert len({prompt[0] for prompt in prompts}) == 64
    assert {token_id for prompt in prompts for token_id in prompt} <= set(WORDS)


def test_the_same_seed_asks_every_server_the_same() -> None:
    assert make_prompts(WORDS, 4, 16, seed="a") == make_prompts(WORDS, 4, 16, seed="a")
    assert make_prompts(WORDS, 4, 16, seed="a") != make_prompts(WORDS, 4, 16, seed="b")


def test_more_prompts_than_words() -> None:
    assert [len(prompt) for prompt in make_prompts([1, 2], 5, 3, seed="a")] == [3] * 5


def test_words_are_whole_words_of_the_vocabulary(tmp_path: Path) -> None:
    made = tokenizer()
    made.add_tokens(["Ġhello", "Ġof", "Ġ123", "world", "ĠThe", "Ġcat"])
    made.save(str(tmp_path / "tokenizer.json"))
    assert word_ids(tmp_path) == [made.token_to_id("Ġhello"), made.token_to_id("Ġcat")]
