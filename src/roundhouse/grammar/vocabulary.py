"""The model's tokens as llguidance wants them."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper

from roundhouse.model_store.tokenizer import Tokenizer
from roundhouse.protocol.errors import ModelError


class _Vocabulary:
    """What `TokenizerWrapper` asks for. The masks look at bytes alone: a text is never tokenized by it."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self.eos_token_id = min(tokenizer.stop_token_ids)
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens: Sequence[bytes] = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_token_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def build_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """vocab_size: how many tokens can be sampled. Takes about 0.3 s for 49,000 tokens.

    Raises `ModelError` when no token ends the model's texts: then no grammar could ever end one.
    """
    stop_token_ids = sorted(token_id for token_id in tokenizer.stop_token_ids if token_id < vocab_size)
    if not stop_token_ids:
        raise ModelError("this model has no token that ends a text, which structured outputs need")
    return LLTokenizer(
        TokenizerWrapper(_Vocabulary(tokenizer, vocab_size)), n_vocab=vocab_size, eos_token=stop_token_ids
    )
