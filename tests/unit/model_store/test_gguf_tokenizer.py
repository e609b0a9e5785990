import json
from pathlib import Path
from typing import Any

import pytest

from roundhouse.model_store.errors import ConversionFailed
from roundhouse.model_store.gguf_file import GgufFile
from roundhouse.model_store.gguf_tokenizer import build_tokenizer, can_build, write_tokenizer_files
from tests.unit.model_store import tiny


def gguf(**changes: Any) -> GgufFile:
    return GgufFile(Path("m.gguf"), tiny.metadata(**changes), ())


def pieces(text: str, **changes: Any) -> list[str]:
    return build_tokenizer(tiny.metadata(**changes)).encode(text).tokens


def test_digits_are_cut_off_before_spaces_are_grouped() -> None:
    assert pieces("hello  12", tokenizer__ggml__pre="smollm") == ["hello", "ĠĠ", "1", "2"]
    assert pieces("hello  12", tokenizer__ggml__pre="gpt-2") == ["hello", "Ġ", "Ġ", "1", "2"]


def test_control_tokens_are_single_special_and_round_trip() -> None:
    tokenizer = build_tokenizer(tiny.metadata())
    ids = tokenizer.encode("<|im_start|>hello é<|im_end|>").ids
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>hello é<|im_end|>"
    assert tokenizer.decode(ids) == "hello é"
    assert tokenizer.get_vocab_size() == len(tiny.vocabulary())


def test_user_defined_tokens_are_single_but_not_special() -> None:
    types = tiny.metadata()["tokenizer.ggml.token_type"]
    types[0] = 4
    tokenizer = build_tokenizer(tiny.metadata(tokenizer__ggml__token_type=types))
    assert tokenizer.encode("<|endoftext|>").ids == [0]
    assert tokenizer.decode([0]) == "<|endoftext|>"


def test_a_beginning_token_is_added_only_where_the_file_asks_for_it() -> None:
    assert pieces("hello") == ["hello"]
    assert pieces("hello", tokenizer__ggml__add_bos_token=True) == ["<|im_start|>", "hello"]
    with pytest.raises(ConversionFailed, match="asks for a beginning-of-text token but names none"):
        pieces("hello", tokenizer__ggml__add_bos_token=True, tokenizer__ggml__bos_token_id=None)


def test_only_vocabularies_that_are_fully_described_are_built() -> None:
    assert can_build(gguf())
    assert can_build(gguf(tokenizer__ggml__pre="gpt-2"))
    assert not can_build(gguf(tokenizer__ggml__pre="llama-bpe"))
    assert not can_build(gguf(tokenizer__ggml__pre=None))
    assert not can_build(gguf(tokenizer__ggml__pre=["smollm"]))
    assert not can_build(gguf(tokenizer__ggml__model="llama"))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tokenizer__ggml__merges": None}, "has no tokenizer.ggml.merges"),
        ({"tokenizer__ggml__tokens": ["a"]}, "has 1 tokens but 264 token types"),
        ({"tokenizer__ggml__merges": ["not there"]}, "merges do not fit its vocabulary"),
        ({"tokenizer__ggml__merges": ["h"]}, "merges do not fit its vocabulary"),
        # The library panics.
        (
            {
                "tokenizer__ggml__tokens": ["a"] * 3,
                "tokenizer__ggml__token_type": [1] * 3,
                "tokenizer__ggml__merges": ["a a"],
            },
            "merges do not fit its vocabulary",
        ),
        ({"tokenizer__ggml__merges": [1]}, "tokenizer.ggml.merges is no list of str"),
        ({"tokenizer__ggml__tokens": [["a"]]}, "tokenizer.ggml.tokens is no list of str"),
        ({"tokenizer__ggml__token_type": True}, "tokenizer.ggml.token_type is no list of int"),
    ],
)
def test_a_vocabulary_that_does_not_add_up_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConversionFailed, match=complaint):
        build_tokenizer(tiny.metadata(**changes))


def test_the_files_beside_the_tokenizer(tmp_path: Path) -> None:
    write_tokenizer_files(gguf(tokenizer__ggml__eot_token_id=0), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "chat_template.jinja",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (tmp_path / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {
        "bos_token_id": 1,
        "pad_token_id": 2,
        "eos_token_id": [2, 0],
    }
    assert json.loads((tmp_path / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 128,
        "clean_up_tokenization_spaces": False,
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }


def test_a_file_that_names_nothing_gives_empty_files(tmp_path: Path) -> None:
    nothing = {f"tokenizer__ggml__{key}_token_id": None for key in ("bos", "eos", "unknown", "padding")}
    write_tokenizer_files(gguf(**nothing, tokenizer__chat_template=None), tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {}
    assert not (tmp_path / "chat_template.jinja").exists()


@pytest.mark.parametrize(
    ("name", "index"), [("bos", "1"), ("eos", 1.5), ("eot", [1]), ("padding", -1), ("unknown", True)]
)
def test_an_id_that_is_no_tokens_is_refused(tmp_path: Path, name: str, index: object) -> None:
    with pytest.raises(ConversionFailed, match=f"tokenizer.ggml.{name}_token_id is no token's"):
        write_tokenizer_files(gguf(**{f"tokenizer__ggml__{name}_token_id": index}), tmp_path)


@pytest.mark.parametrize("bos", ["{'': $0", "$A", "a b:1", "BOS"])
def test_a_beginning_token_is_no_word_of_the_librarys_template(bos: str) -> None:
    tokens = [*tiny.vocabulary()]
    tokens[1] = bos
    tokenizer = build_tokenizer(tiny.metadata(tokenizer__ggml__tokens=tokens, tokenizer__ggml__add_bos_token=True))
    assert tokenizer.encode("h").ids == [1, tokens.index("h")]
    assert tokenizer.encode("h", "l").ids == [1, tokens.index("h"), 1, tokens.index("l")]
