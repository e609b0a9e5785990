"""The joined pieces of a stream against decoding everything at once."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roundhouse.frontend.token_stream import MAX_HELD_TOKENS, TokenStream, pending_bytes
from tests.support.small_tokenizers import byte_fallback, byte_level, ids_of

BYTE_LEVEL = byte_level()
BYTE_FALLBACK = byte_fallback()

any_ids = st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=60)
torn_ids = st.lists(
    st.sampled_from(ids_of(BYTE_LEVEL, b"\xf0", b"\x9f", b"\x99", b"\x82", b"\xff", b"a", b"\xe8", b"\x9e")),
    max_size=60,
)
text_ids = st.lists(
    st.sampled_from(ids_of(BYTE_FALLBACK, "Hello", " Hello", " the", " ", "  ", "é", "a", ".", "<|begin|>", "<|end|>")),
    max_size=30,
)


def streamed(tokenizer, prompt, outputs, **options):
    stream = TokenStream(tokenizer, prompt, **options)
    return [stream.step(token_id) for token_id in outputs] + [stream.flush()]


def decoded(tokenizer, prompt, outputs, skip_special_tokens):
    """What `outputs` add, without a character that is cut off."""
    silent = tokenizer.special_token_ids if skip_special_tokens else ()
    data = b"".join(tokenizer.token_bytes(token_id) for token_id in [*prompt, *outputs] if token_id not in silent)
    text = data[: len(data) - len(pending_bytes(data))].decode(errors="replace")
    before = b"".join(tokenizer.token_bytes(token_id) for token_id in prompt if token_id not in silent)
    return text[len(before[: len(before) - len(pending_bytes(before))].decode(errors="replace")) :]


@given(prompt=any_ids, outputs=st.one_of(any_ids, torn_ids), skip=st.booleans())
@example(prompt=[], outputs=ids_of(BYTE_LEVEL, b"\xf0") * 40, skip=True)
@example(prompt=[], outputs=ids_of(BYTE_LEVEL, b"\xff") * 40 + ids_of(BYTE_LEVEL, "🙂"), skip=True)
@example(prompt=ids_of(BYTE_LEVEL, "\ufffd"), outputs=ids_of(BYTE_LEVEL, "Hello"), skip=True)
@example(prompt=ids_of(BYTE_LEVEL, b"\xff", b"\xf0\x9f"), outputs=ids_of(BYTE_LEVEL, b"\x99\x82"), skip=True)
def test_bytes_come_out_as_decoding_all_at_once(prompt, outputs, skip):
    pieces = streamed(BYTE_LEVEL, prompt, outputs, skip_special_tokens=skip)
    assert "".join(pieces) == decoded(BYTE_LEVEL, prompt, outputs, skip)


@given(prompt=text_ids, outputs=text_ids, skip=st.booleans())
def test_spaces_come_out_as_decoding_all_at_once(prompt, outputs, skip):
    whole = BYTE_FALLBACK.decode(prompt + outputs, skip)
    before = BYTE_FALLBACK.decode(prompt, skip)
    assert "".join(streamed(BYTE_FALLBACK, prompt, outputs, skip_special_tokens=skip)) == whole[len(before) :]


@given(text=st.text(max_size=40))
def test_no_piece_tears_a_character(text):
    ids = BYTE_LEVEL.encode(text)
    pieces = streamed(BYTE_LEVEL, [], ids)
    assert "".join(pieces) == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(text=st.text(alphabet="🙂é語a ", min_size=1, max_size=10), cut=st.integers(1, 3))
def test_a_character_that_is_cut_off_never_comes(text, cut):
    ids = BYTE_LEVEL.encode(text)[:-cut]
    assert "\ufffd" not in "".join(streamed(BYTE_LEVEL, [], ids))


def test_a_character_comes_whole_with_its_last_byte():
    assert streamed(BYTE_LEVEL, [], ids_of(BYTE_LEVEL, *(bytes([byte]) for byte in "🙂".encode()))) == [
        "",
        "",
        "",
        "🙂",
        "",
    ]


def test_the_outputs_get_a_character_that_the_prompt_began():
    prompt = ids_of(BYTE_LEVEL, "Hello", "🙂".encode()[:2])
    assert streamed(BYTE_LEVEL, prompt, ids_of(BYTE_LEVEL, "🙂".encode()[2:])) == ["🙂", ""]


def test_a_replacement_character_that_the_model_made_is_text():
    assert "".join(streamed(BYTE_LEVEL, [], ids_of(BYTE_LEVEL, "\ufffd"))) == "\ufffd"


def test_byte_tokens_that_are_no_character_do_not_end_the_stream():
    """The library's stream raises for these: the fourth byte takes back the € before it."""
    ids = (
        ids_of(BYTE_FALLBACK, "Hello")
        + [1 + byte for byte in "€".encode()]
        + [1 + 0xFF]
        + ids_of(BYTE_FALLBACK, "a", " the")
    )
    assert "".join(streamed(BYTE_FALLBACK, [], ids)) == "Hello€\ufffda the"


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte level", "byte fallback"])
def test_bytes_that_are_no_text_are_shown_in_the_end_and_not_kept(tokenizer):
    stream = TokenStream(tokenizer, [])
    token = ids_of(BYTE_LEVEL, b"\xff")[0] if tokenizer is BYTE_LEVEL else 1 + 0xFF
    shown = "".join(stream.step(token) for _ in range(200))
    assert 200 - MAX_HELD_TOKENS <= len(shown) <= 200
    assert shown + stream.flush() == "\ufffd" * 200


def test_special_tokens_are_text_when_asked_for():
    ids = ids_of(BYTE_LEVEL, "Hello", "<|end|>", "<|end|>", " world")
    assert "".join(streamed(BYTE_LEVEL, [], ids)) == "Hello world"
    assert "".join(streamed(BYTE_LEVEL, [], ids, skip_special_tokens=False)) == "Hello<|end|><|end|> world"


@pytest.mark.parametrize("bad", [-1, BYTE_LEVEL.vocab_size, 2**40])
def test_an_id_without_text_is_logged_and_gives_none(bad, caplog):
    stream = TokenStream(BYTE_LEVEL, [])
    assert [
        stream.step(token_id) for token_id in [*ids_of(BYTE_LEVEL, "Hello"), bad, *ids_of(BYTE_LEVEL, " world")]
    ] == [
        "Hello",
        "",
        " world",
    ]
    assert str(bad) in caplog.text
