import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from roundhouse.model_store.errors import InvalidText, TokenizerInvalid
from roundhouse.model_store.model_config import DefaultSampling
from roundhouse.model_store.tokenizer import load_tokenizer, read_special_tokens
from tests.unit.model_store import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_folder(tmp_path, config={"vocab_size": 300, "max_position_embeddings": 128})


def test_facts(folder: Path) -> None:
    tiny.write_json(folder / "generation_config.json", {"eos_token_id": [0], "temperature": 0.5})
    loaded = load_tokenizer(folder)
    assert loaded.vocab_size == len(tiny.vocabulary()) == 264
    assert loaded.model_vocab_size == 300
    assert loaded.max_model_len == 128
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (1, 2, None)
    assert loaded.special_token_ids == {0, 1, 2}
    assert loaded.stop_token_ids == {0, 2}
    assert loaded.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert loaded.default_sampling == DefaultSampling(temperature=0.5)


def test_text_to_ids_and_back(folder: Path) -> None:
    loaded = load_tokenizer(folder)
    text = "<|im_start|>hello  é 🎉<|im_end|>"
    ids = loaded.encode(text)
    assert (ids[0], ids[1], ids[-1]) == (1, tiny.vocabulary().index("hello"), 2)
    assert loaded.decode(ids, skip_special_tokens=False) == text
    assert loaded.decode(ids) == "hello  é 🎉"
    assert b"".join(map(loaded.token_bytes, ids)) == text.encode()


def test_one_token_on_its_own(folder: Path) -> None:
    loaded = load_tokenizer(folder)
    first_of_two = loaded.encode("é")[0]
    assert loaded.token_bytes(first_of_two) == b"\xc3"
    assert loaded.token_to_str(first_of_two) == "\ufffd"
    assert loaded.token_to_str(1) == "<|im_start|>"
    assert loaded.token_to_str(299) == ""
    assert loaded.decode([299]) == ""


def test_what_goes_around_a_text_is_the_tokenizers_own(folder: Path) -> None:
    backend = tiny.tokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    backend.save(str(folder / "tokenizer.json"))
    loaded = load_tokenizer(folder)
    hello = tiny.vocabulary().index("hello")
    assert loaded.encode("hello") == [1, hello]
    assert loaded.encode("hello", add_special_tokens=False) == [hello]


def test_text_without_a_utf8_form_is_refused(folder: Path) -> None:
    loaded = load_tokenizer(folder)
    with pytest.raises(InvalidText, match="a lone surrogate at character 5"):
        loaded.encode("hello\ud800")
    with pytest.raises(ValueError, match="a lone surrogate at character 0"):
        loaded.encode("\udfff")


def test_leftovers_of_training_do_not_cut_or_pad_prompts(folder: Path) -> None:
    backend = tiny.tokenizer()
    backend.enable_truncation(2)
    backend.enable_padding(length=4)
    backend.save(str(folder / "tokenizer.json"))
    loaded = load_tokenizer(folder)
    assert len(loaded.encode("abc")) == 3
    assert len(loaded.encode("a")) == 1


def test_a_named_token_is_special_whatever_tokenizer_json_says(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"][2]["special"] = False
    del content["added_tokens"][1]
    tiny.write_json(folder / "tokenizer.json", content)
    assert Backend.from_file(str(folder / "tokenizer.json")).encode("<|im_start|>").ids != [1]
    loaded = load_tokenizer(folder)
    assert loaded.special_token_ids == {0, 1, 2}
    assert loaded.encode("<|im_start|>") == [1]
    assert loaded.decode([1, 2]) == ""


def test_named_tokens_come_from_two_files_in_two_spellings(tmp_path: Path) -> None:
    tiny.write_json(tmp_path / "special_tokens_map.json", {"bos_token": "old", "pad_token": {"content": "<pad>"}})
    tiny.write_json(tmp_path / "tokenizer_config.json", {"bos_token": {"content": "<s>"}, "eos_token": None})
    assert read_special_tokens(tmp_path) == {"bos_token": "<s>", "pad_token": "<pad>"}


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": 1}'])
def test_a_file_that_is_no_tokenizer_is_refused(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerInvalid, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(folder)
