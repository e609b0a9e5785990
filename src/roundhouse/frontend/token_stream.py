"""Token ids → text, one token at a time, by the library's `DecodeStream`: O(1) a token, whatever the text's length.

The joined pieces are what decoding prompt and outputs together adds to the decoded prompt. A character whose bytes are
spread over tokens comes whole with its last one; one that is cut off by the end of the request never comes, so U+FFFD
stands only for bytes that the model made and that are no character.
"""

from __future__ import annotations

import codecs
import logging
from collections.abc import Sequence
from itertools import islice

from tokenizers.decoders import DecodeStream

from roundhouse.model_store.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

REPLACEMENT = "\ufffd"

MAX_CHARACTER_TOKENS = 4
"""A character has at most four bytes, so no more tokens decide what the last one of a text is."""

CONTEXT_TOKENS = 6 + MAX_CHARACTER_TOKENS
"""Of the prompt's end: a decoder then knows that it is not at the start of a text, be the last character incomplete."""

MAX_HELD_TOKENS = 16
"""Without a limit, a model that goes on with bytes that are no text would make each step decode all of them again."""

_INVALID_PREFIX = "Invalid prefix encountered"


class TokenStream:
    """The decoder of one choice. Ids without text give none, nor do special tokens when `skip_special_tokens`.

    The library's stream cannot be asked what it holds. So both parts are kept here as well: `_context`, the tokens of
    the last text, and `_held`, those that gave none yet, of which `_num_shown` characters were shown all the same.
    """

    __slots__ = (
        "_context",
        "_held",
        "_joins_special_tokens",
        "_num_shown",
        "_silent_ids",
        "_skip_special_tokens",
        "_stream",
        "_tokenizer",
        "_was_special",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        # Decoding leaves them out as well, but each would stay in the library's buffer and slow the next step down.
        self._silent_ids: frozenset[int] = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._joins_special_tokens = not skip_special_tokens and not spaces_between_special_tokens
        self._was_special = False
        self._context: list[int] = []
        self._held: list[int] = []
        self._num_shown = 0
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._prime(prompt_token_ids)

    def step(self, token_id: int) -> str:
        """What `token_id` adds: nothing while a character is incomplete."""
        if token_id in self._silent_ids:
            return ""
        if not 0 <= token_id < self._tokenizer.vocab_size:
            logger.warning("token id %d has no text in a vocabulary of %d", token_id, self._tokenizer.vocab_size)
            return ""
        self._held.append(token_id)
        text = self._next_text(token_id)
        if text is not None:
            text = text[self._num_shown :]
            self._context, self._held, self._num_shown = self._held, [], 0
        elif len(self._held) >= MAX_HELD_TOKENS:
            text = self._release()
        else:
            text = ""
        return self._without_space(token_id, text) if self._joins_special_tokens else text

    def flush(self) -> str:
        """What is held back at the end of the request, without a character that is cut off."""
        if not self._held:
            return ""
        data = b"".join(map(self._tokenizer.token_bytes, self._held))
        cut_off = pending_bytes(data)
        text = data[: -len(cut_off)].decode(errors="replace") if cut_off else self._held_text()
        text, self._held, self._num_shown = text[self._num_shown :], [], 0
        return text

    def _prime(self, prompt_token_ids: Sequence[int]) -> None:
        """Feeds the prompt's end. A character that is incomplete there is completed by the outputs, and then theirs."""
        size, silent = self._tokenizer.vocab_size, self._silent_ids
        audible = (token_id for token_id in reversed(prompt_token_ids) if token_id not in silent and token_id < size)
        for token_id in reversed(list(islice(audible, CONTEXT_TOKENS))):
            self.step(token_id)
        if self._held:
            held_back = 1 if pending_bytes(b"".join(map(self._tokenizer.token_bytes, self._held))) else 0
            self._num_shown = max(0, len(self._held_text()) - held_back)

    def _next_text(self, token_id: int) -> str | None:
        try:
            return self._stream.step(self._tokenizer.backend, token_id)
        except Exception as error:  # the library raises nothing narrower
            if not str(error).startswith(_INVALID_PREFIX):
                raise
        # The held tokens would change text that was shown already, as byte tokens that are no character can. It stays.
        self._num_shown = 0
        return self._restart(self._held)

    def _release(self) -> str:
        """Shows what is held except its last character, which more bytes could change; holds that one's tokens only."""
        shown, text = self._num_shown, self._held_text()
        if not text:
            self._held = []
            self._restart(self._context)
            return ""
        last = self._held[-MAX_CHARACTER_TOKENS:]
        if self._restart(last) is not None:
            self._context, self._held, self._num_shown = last, [], 0
            return text[shown:]
        self._context, self._held = [], last
        self._num_shown = max(0, len(self._held_text()) - 1)
        return text[shown:-1]

    def _restart(self, token_ids: list[int]) -> str | None:
        self._stream = DecodeStream(skip_special_tokens=self._skip_special_tokens)
        return self._stream.step(self._tokenizer.backend, token_ids)

    def _held_text(self) -> str:
        before = self._tokenizer.decode(self._context, self._skip_special_tokens)
        both = self._tokenizer.decode(self._context + self._held, self._skip_special_tokens)
        if both.startswith(before):
            return both[len(before) :]
        return self._tokenizer.decode(self._held, self._skip_special_tokens)

    def _without_space(self, token_id: int, text: str) -> str:
        after_special, self._was_special = self._was_special, token_id in self._tokenizer.special_token_ids
        return text.removeprefix(" ") if after_special and self._was_special else text


def pending_bytes(data: bytes) -> bytes:
    """The beginning of a character at the end of `data` that more bytes could complete."""
    if not data or data[-1] < 0x80:
        return b""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return decoder.getstate()[0]
