"""Tokenizers of a few hundred tokens, one for each of the two kinds of vocabulary that language models have."""

from __future__ import annotations

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from roundhouse.model_store.model_config import DefaultSampling
from roundhouse.model_store.token_bytes import TokenBytes
from roundhouse.model_store.tokenizer import Tokenizer

WORDS = [
    "Hello",
    " Hello",
    " world",
    " the",
    "the",
    "ABC",
    "DEF",
    "GHI",
    "J",
    "DEFGHIJ",
    "CDEF",
    "\n\n",
    ".",
    " ",
    "  ",
]
PIECES = [
    "🙂".encode(),
    "🙂".encode()[:2],
    "🙂".encode()[2:],
    "é".encode() + b"\xe6",
    "語".encode()[1:],
    b"\xff",
    "\ufffd".encode(),
]
"""Parts of characters, the end of one with the beginning of the next, and what is no character at all."""

SPECIAL = ["<|begin|>", "<|end|>", "<|extra_end|>"]


def byte_level(*, max_model_len: int = 128, padded: int = 3) -> Tokenizer:
    """As of Llama 3 or SmolLM2: all 256 bytes, then `WORDS`, `PIECES` and `SPECIAL`; `padded` ids have no text."""
    tokens = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS), *PIECES]
    alphabet = _byte_alphabet()
    vocabulary = {"".join(alphabet[byte] for byte in token): i for i, token in enumerate(dict.fromkeys(tokens))}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _wrap(backend, max_model_len, padded)


def byte_fallback(*, max_model_len: int = 128, padded: int = 3) -> Tokenizer:
    """As of Llama 2 or Mistral: words with a mark for the space before them, and 256 tokens for single bytes."""
    words = [word.replace(" ", "▁") for word in [*WORDS, *"abcdefgh", "é", "語"]]
    tokens = dict.fromkeys(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *words])
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrap(backend, max_model_len, padded)


def ids_of(tokenizer: Tokenizer, *tokens: str | bytes) -> list[int]:
    """The ids of tokens by what they add to a text; of two that add the same, the word and not the byte."""
    by_bytes = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [by_bytes[token.encode() if isinstance(token, str) else token] for token in tokens]


def _wrap(backend: Backend, max_model_len: int, padded: int) -> Tokenizer:
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    begin, end, extra_end = (backend.token_to_id(token) for token in SPECIAL)
    vocab_size = backend.get_vocab_size()
    return Tokenizer(
        backend=backend,
        vocab_size=vocab_size,
        model_vocab_size=vocab_size + padded,
        max_model_len=max_model_len,
        bos_token_id=begin,
        eos_token_id=end,
        pad_token_id=None,
        special_token_ids=frozenset({begin, end, extra_end}),
        stop_token_ids=frozenset({end, extra_end}),
        special_tokens={"bos_token": SPECIAL[0], "eos_token": SPECIAL[1]},
        default_sampling=DefaultSampling(),
        _bytes=TokenBytes.of_backend(backend),
    )


def _byte_alphabet() -> list[str]:
    """GPT-2's stand-ins by byte: visible Latin-1 characters stand for themselves, the others follow from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_ins = iter(range(0x100, 0x200))
    return [chr(byte) if byte in visible else chr(next(stand_ins)) for byte in range(256)]
