"""Text ↔ token ids from tokenizer.json, by the `tokenizers` library alone: the frontend has no transformers.

Thread safe: nothing is changed after loading, and the library lets other threads run while it encodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from roundhouse.model_store.errors import InvalidText, TokenizerInvalid, is_library_fault
from roundhouse.model_store.folder import read_json_if_any
from roundhouse.model_store.model_config import DefaultSampling, read_model_config
from roundhouse.model_store.token_bytes import TokenBytes

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The model's vocabulary with what a request needs to know of the model.

    `vocab_size` counts the tokens that have text, added ones included; ids from there to `model_vocab_size` are padding
    of the weights. `stop_token_ids` end a text unless `ignore_eos`. `special_tokens` are the named ones, for the chat
    template. `backend` is there for incremental decoding; its settings are not to be changed.
    """

    backend: Backend
    vocab_size: int
    model_vocab_size: int
    max_model_len: int
    bos_token_id: int | None
    eos_token_id: int | None
    pad_token_id: int | None
    special_token_ids: frozenset[int]
    stop_token_ids: frozenset[int]
    special_tokens: dict[str, str]
    default_sampling: DefaultSampling
    _bytes: TokenBytes

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """`add_special_tokens` adds what the model puts around a text (often a beginning token); a rendered chat has
        its own.

        Raises `InvalidText`, a ValueError, for text with lone surrogates, which JSON can carry and UTF-8 cannot.
        """
        try:
            # The batch call lets other threads run meanwhile; `encode` does not, and takes twice as long.
            return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except TypeError:
            _refuse_surrogates(text)
            raise

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Ids without text (padding of the weights) give nothing; cut-off UTF-8 gives U+FFFD."""
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, which may be a part of a character; for the `bytes` of logprobs."""
        return self._bytes[token_id]

    def token_to_str(self, token_id: int) -> str:
        """The token as text on its own, special tokens by name; a part of a character is U+FFFD."""
        return self._bytes[token_id].decode(errors="replace")


def load_tokenizer(folder: Path) -> Tokenizer:
    """From a folder that `resolve_model` returned; 0.1 s or more. Raises `TokenizerInvalid`, `ModelFolderInvalid`."""
    path = folder / "tokenizer.json"
    try:
        backend = Backend.from_file(str(path))
    except BaseException as error:  # the library raises nothing narrower, and panics
        if not is_library_fault(error):
            raise
        raise TokenizerInvalid(f"{path} is not a tokenizer: {' '.join(str(error).split())[:200]}") from error
    # Left over from training; they would cut and pad prompts without a word.
    backend.no_truncation()
    backend.no_padding()
    config = read_model_config(folder)
    special_tokens = read_special_tokens(folder)
    ids = {name: backend.token_to_id(token) for name, token in special_tokens.items()}
    _make_special(backend, {index for index in ids.values() if index is not None})
    eos = ids.get("eos_token")
    added = backend.get_added_tokens_decoder()
    return Tokenizer(
        backend=backend,
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        model_vocab_size=config.vocab_size,
        max_model_len=config.max_model_len,
        bos_token_id=ids.get("bos_token"),
        eos_token_id=eos,
        pad_token_id=ids.get("pad_token"),
        special_token_ids=frozenset(index for index, token in added.items() if token.special),
        stop_token_ids=config.eos_token_ids | ({eos} if eos is not None else frozenset()),
        special_tokens=special_tokens,
        default_sampling=config.default_sampling,
        _bytes=TokenBytes.of_backend(backend),
    )


def _make_special(backend: Backend, token_ids: set[int]) -> None:
    """As transformers does: a named token is special even where tokenizer.json has it as a common word."""
    added = backend.get_added_tokens_decoder()
    common = [index for index in sorted(token_ids) if index not in added or not added[index].special]
    backend.add_special_tokens([AddedToken(backend.id_to_token(index), normalized=False) for index in common])


def read_special_tokens(folder: Path) -> dict[str, str]:
    """The named special tokens of tokenizer_config.json, or of special_tokens_map.json where the former has none."""
    sources: list[dict[str, Any]] = [
        read_json_if_any(folder / "special_tokens_map.json"),
        read_json_if_any(folder / "tokenizer_config.json"),
    ]
    found: dict[str, str] = {}
    for source in sources:
        for name in SPECIAL_NAMES:
            token = source.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and text:
                found[name] = text
    return found


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(f"the text has a lone surrogate at character {error.start}") from error
