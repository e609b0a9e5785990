import numpy as np

from roundhouse.frontend.logprobs import LogprobsProcessor
from roundhouse.frontend.outputs import PositionLogprobs, TokenLogprob
from roundhouse.protocol.messages import LogprobsLists, PromptLogprobs
from tests.support.small_tokenizers import byte_fallback, byte_level, ids_of

TOKENIZER = byte_level()
HELLO, WORLD, DOT = ids_of(TOKENIZER, "Hello", " world", ".")
SMILE = [bytes([byte]) for byte in "🙂".encode()]


def test_the_sampled_token_and_the_likeliest_with_their_ranks():
    rows = LogprobsLists([[HELLO, WORLD, DOT]], [[-3.0, -0.5, -1.0]], [12])
    assert LogprobsProcessor(TOKENIZER).positions(rows, []) == [
        PositionLogprobs(
            TokenLogprob(HELLO, "Hello", b"Hello", -3.0, 12),
            [TokenLogprob(WORLD, " world", b" world", -0.5, 1), TokenLogprob(DOT, ".", b".", -1.0, 2)],
        )
    ]


def test_without_top_logprobs_there_is_the_sampled_token():
    assert LogprobsProcessor(TOKENIZER).positions(LogprobsLists([[DOT]], [[-1.0]], [1]), []) == [
        PositionLogprobs(TokenLogprob(DOT, ".", b".", -1.0, 1), [])
    ]


def test_a_torn_character_is_the_text_of_its_last_token():
    ids = ids_of(TOKENIZER, *SMILE)
    rows = LogprobsLists([[token_id] for token_id in ids[1:]], [[-1.0]] * 3, [1] * 3)
    positions = LogprobsProcessor(TOKENIZER).positions(rows, [HELLO, ids[0]])
    assert [(entry.sampled.token, entry.sampled.utf8) for entry in positions] == [
        ("", SMILE[1]),
        ("", SMILE[2]),
        ("🙂", SMILE[3]),
    ]


def test_bytes_that_are_no_character_are_shown_as_such():
    rows = LogprobsLists([ids_of(TOKENIZER, b"\xff", b"\x99")], [[-1.0, -2.0]], [1])
    position = LogprobsProcessor(TOKENIZER).positions(rows, [])[0]
    assert (position.sampled.token, position.top[0].token) == ("\ufffd", "\ufffd")


def test_a_word_keeps_the_space_before_it():
    tokenizer = byte_fallback()
    rows = LogprobsLists([ids_of(tokenizer, " Hello")], [[-1.0]], [1])
    assert LogprobsProcessor(tokenizer).positions(rows, [])[0].sampled.token == " Hello"


def test_a_prompt_has_none_for_its_first_token():
    prompt = PromptLogprobs(
        np.array([[WORLD, DOT]], np.int32), np.array([[-2.0, -0.5]], np.float32), np.array([3], np.int32)
    )
    assert LogprobsProcessor(TOKENIZER).prompt_positions(prompt, HELLO) == [
        None,
        PositionLogprobs(TokenLogprob(WORLD, " world", b" world", -2.0, 3), [TokenLogprob(DOT, ".", b".", -0.5, 1)]),
    ]
