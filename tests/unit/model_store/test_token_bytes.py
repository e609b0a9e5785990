from tokenizers import AddedToken, Tokenizer, decoders, models

from roundhouse.model_store.token_bytes import TokenBytes
from tests.unit.model_store import tiny


def test_byte_level_tokens_are_the_bytes_they_spell() -> None:
    tokenizer = tiny.tokenizer()
    found = TokenBytes.of_backend(tokenizer)
    singles = sorted(found[index] for index in range(3, 259))
    assert singles == [bytes([byte]) for byte in range(256)]
    assert found[tiny.vocabulary().index("ĠĠ")] == b"  "
    assert found[0] == b"<|endoftext|>"
    assert found[264] == b""


def test_sentencepiece_tokens_have_spaces_and_bytes_of_their_own_spelling() -> None:
    vocab = {"<unk>": 0, "▁Hello": 1, "<0xE2>": 2, "▁": 3, "<0xZZ>": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("<unk>")])
    found = TokenBytes.of_backend(tokenizer)
    assert [found[index] for index in range(6)] == [b"<unk>", b" Hello", b"\xe2", b" ", b"<0xZZ>", b""]


def test_without_a_decoder_a_token_is_its_text() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "é": 1}, unk_token="a"))
    found = TokenBytes.of_backend(tokenizer)
    assert [found[0], found[1]] == [b"a", "é".encode()]
