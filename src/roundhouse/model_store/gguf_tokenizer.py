"""A GGUF file's vocabulary → tokenizer.json and the files beside it, for the byte-level BPE that the metadata describes
fully.

Why not the one transformers builds from the file (5.24): it knows no pre-tokenizer named `smollm` and silently takes
GPT-2's, which gives " ", " ", "1", "2" for "  12" where the model was trained on "  ", "1", "2". And a frontend has no
transformers. The groups of pre-tokenizers are llama.cpp's (src/llama-vocab.cpp).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from roundhouse.model_store.errors import ConversionFailed, is_library_fault
from roundhouse.model_store.folder import read_json_if_any, write_json
from roundhouse.model_store.gguf_file import GgufFile

T = TypeVar("T")

DIGIT_SPLITTING = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
"""Pre-tokenizers that cut off each digit first, then split as GPT-2."""

PLAIN_GPT2 = frozenset({"gpt-2", "mpt", "olmo", "jais", "trillion", "granite-docling"})

_CONTROL, _USER_DEFINED = 3, 4
_BOS = "BOS"
"""In the library's template, which reads a token of its own as a word of its language."""

_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def can_build(gguf: GgufFile) -> bool:
    pre = gguf.metadata.get("tokenizer.ggml.pre")
    is_known = isinstance(pre, str) and pre in DIGIT_SPLITTING | PLAIN_GPT2
    return is_known and gguf.metadata.get("tokenizer.ggml.model") == "gpt2"


def write_tokenizer_files(gguf: GgufFile, folder: Path) -> None:
    """tokenizer.json, tokenizer_config.json, generation_config.json, and chat_template.jinja if the file has one.

    Raises `ConversionFailed` when the metadata are not what their names say.
    """
    metadata = gguf.metadata
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"), pretty=False)
    named = named_tokens(metadata)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata.get(f"{gguf.architecture}.context_length"),
        "clean_up_tokenization_spaces": False,
        **named,
    }
    write_json(folder / "tokenizer_config.json", config)
    write_generation_config(gguf, folder)
    template = metadata.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def write_generation_config(gguf: GgufFile, folder: Path) -> None:
    """Which tokens begin and end a text; the end of a chat turn ends it too where the file names one of its own."""
    path = folder / "generation_config.json"
    config = read_json_if_any(path)
    for name, key in (("bos", "bos"), ("pad", "padding")):
        if (index := _token_id(gguf.metadata, key)) is not None:
            config[f"{name}_token_id"] = index
    ends = [_token_id(gguf.metadata, key) for key in ("eos", "eot")]
    distinct = list(dict.fromkeys(index for index in ends if index is not None))
    if distinct:
        config["eos_token_id"] = distinct if len(distinct) > 1 else distinct[0]
    write_json(path, config)


def build_tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    """Raises `ConversionFailed` when the vocabulary is not one; asks for `can_build`."""
    tokens = _listed(metadata, "tokenizer.ggml.tokens", str)
    types = _listed(metadata, "tokenizer.ggml.token_type", int)
    merges = [_pair(merge) for merge in _listed(metadata, "tokenizer.ggml.merges", str)]
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(types) != len(tokens):
        raise ConversionFailed(f"the GGUF file has {len(tokens)} tokens but {len(types)} token types")
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))
    except BaseException as error:  # the library raises nothing narrower, and panics
        if not is_library_fault(error):
            raise
        raise ConversionFailed(f"the GGUF file's merges do not fit its vocabulary: {error}") from error
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if metadata["tokenizer.ggml.pre"] in DIGIT_SPLITTING:
        byte_level = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    added = [(token, kind) for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token, kind in added if kind == _CONTROL])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, kind in added if kind == _USER_DEFINED])
    _add_bos(tokenizer, metadata)
    return tokenizer


def named_tokens(metadata: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, unk_token and pad_token as text, those the file names. Raises `ConversionFailed`."""
    tokens = _listed(metadata, "tokenizer.ggml.tokens", str)
    ids = {name: _token_id(metadata, key) for name, key in _NAMED.items()}
    return {name: tokens[index] for name, index in ids.items() if index is not None and index < len(tokens)}


def _add_bos(tokenizer: Tokenizer, metadata: dict[str, Any]) -> None:
    if not metadata.get("tokenizer.ggml.add_bos_token"):
        return
    bos = named_tokens(metadata).get("bos_token")
    if bos is None:
        raise ConversionFailed("the GGUF file asks for a beginning-of-text token but names none")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A",
        pair=f"{_BOS} $A {_BOS} $B",
        special_tokens=[{"id": _BOS, "ids": [tokenizer.token_to_id(bos)], "tokens": [bos]}],  # type: ignore[list-item]
    )


def _listed(metadata: dict[str, Any], key: str, kind: type[T]) -> list[T]:
    values = metadata.get(key)
    if values is None:
        raise ConversionFailed(f"the GGUF file has no {key}")
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise ConversionFailed(f"the GGUF file's {key} is no list of {kind.__name__}")
    return values


def _token_id(metadata: dict[str, Any], name: str) -> int | None:
    """None when the file names none."""
    key = f"tokenizer.ggml.{name}_token_id"
    index = metadata.get(key)
    if index is not None and (type(index) is not int or index < 0):
        raise ConversionFailed(f"the GGUF file's {key} is no token's")
    return index


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
