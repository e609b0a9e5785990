"""The bytes that one token adds to a text, by the kind of vocabulary it is from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: a byte that is a visible Latin-1 character is itself, the others follow from
    U+0100.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_ALPHABET = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Looked up by token id. The kinds are told apart by tokenizer.json's decoder.

    Unlike the library's decoding of a single token, a space at the beginning stays: the token adds it to a text.
    """

    backend: Backend
    is_byte_level: bool
    has_byte_tokens: bool
    added: dict[int, bytes]

    @classmethod
    def of_backend(cls, backend: Backend) -> TokenBytes:
        decoder = backend.decoder.__getstate__().decode() if backend.decoder else ""
        added = {index: token.content.encode() for index, token in backend.get_added_tokens_decoder().items()}
        return cls(backend, '"ByteLevel"' in decoder, '"ByteFallback"' in decoder, added)

    def __getitem__(self, token_id: int) -> bytes:
        """Nothing for ids without text, the padding of the weights."""
        if token_id in self.added:
            return self.added[token_id]
        token = self.backend.id_to_token(token_id) or ""
        if self.is_byte_level and all(char in _ALPHABET for char in token):
            return bytes(_ALPHABET[char] for char in token)
        if self.has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.replace(_SPACE, " ").encode()
