"""The bytes that one token adds to a text, by the kind of vocabulary it is from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: a byte that is a visible Latin-1 character is itself, the others follow from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_ALPHABET = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """`decoder` is tokenizer.json's, which tells the kinds apart: ByteLevel, or a replacement for spaces and byte tokens."""

    backend: Backend
    decoder: dict[str, Any]

    def of(self, token_id: int) -> bytes:
        token = self.backend.id_to_token(token_id)
        if token is None:
            return b""
        if self.backend.get_added_tokens_decoder().get(token_id) is not None:
            return token.encode()
        kinds = json.dumps(self.decoder)
        if "ByteLevel" in kinds:
            return bytes(_ALPHABET[char] for char in token)
        return token.encode()
