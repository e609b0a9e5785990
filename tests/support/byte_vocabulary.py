"""A vocabulary in which token n is the byte n: grammars for models of a hundred tokens."""

from __future__ import annotations

from functools import cache

from llguidance import LLTokenizer, TokenizerWrapper

from roundhouse.grammar.compiler import GrammarCompiler

EOS = 2
SPECIAL = [0, 1, EOS]


class ByteVocabulary:
    eos_token_id = EOS
    bos_token_id = 1
    special_token_ids = SPECIAL

    def __init__(self, vocab_size: int) -> None:
        self.tokens = [
            b"<%d>" % token_id if token_id in SPECIAL else bytes([token_id]) for token_id in range(vocab_size)
        ]

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


@cache
def byte_vocabulary(vocab_size: int = 256) -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(ByteVocabulary(vocab_size)), n_vocab=vocab_size, eos_token=[EOS], slices=[])


def byte_compiler(vocab_size: int = 256) -> GrammarCompiler:
    return GrammarCompiler(lambda: byte_vocabulary(vocab_size))
