from roundhouse.frontend.outputs import PositionLogprobs, TokenLogprob
from roundhouse.server.logprobs import CompletionLogprobs, chat_logprobs, joined


def token(token_id: int, text: str, logprob: float, utf8: bytes | None = None) -> TokenLogprob:
    return TokenLogprob(token_id, text, text.encode() if utf8 is None else utf8, logprob, 1)


HI = PositionLogprobs(token(1, "hi", -0.5), [token(1, "hi", -0.5), token(2, "ho", -1.0)])
HALF = PositionLogprobs(
    token(3, "\ufffd", -2.0, b"\xf0"), [token(4, "\ufffd", -1.0, b"\x9f"), token(5, "x", -float("inf"))]
)


def test_chat_has_the_bytes_and_the_likeliest_under_each_token() -> None:
    assert chat_logprobs([HI, HALF]) == {
        "content": [
            {
                "token": "hi",
                "logprob": -0.5,
                "bytes": [104, 105],
                "top_logprobs": [
                    {"token": "hi", "logprob": -0.5, "bytes": [104, 105]},
                    {"token": "ho", "logprob": -1.0, "bytes": [104, 111]},
                ],
            },
            {
                "token": "\ufffd",
                "logprob": -2.0,
                "bytes": [240],
                "top_logprobs": [
                    {"token": "\ufffd", "logprob": -1.0, "bytes": [159]},
                    {"token": "x", "logprob": -9999.0, "bytes": [120]},
                ],
            },
        ],
        "refusal": None,
    }


def test_completion_offsets_go_on_from_prompt_to_output() -> None:
    logprobs = CompletionLogprobs(lambda token_id: f"<{token_id}>")
    prompt = logprobs.prompt([9, 1], [None, HI])
    assert prompt == {
        "text_offset": [0, 3],
        "token_logprobs": [None, -0.5],
        "tokens": ["<9>", "<1>"],
        "top_logprobs": [None, {"hi": -0.5, "ho": -1.0}],
    }
    output = logprobs.output([HALF])
    assert output == {
        "text_offset": [6],
        "token_logprobs": [-2.0],
        "tokens": ["\ufffd"],
        "top_logprobs": [{"\ufffd": -2.0, "x": -9999.0}],
    }
    assert joined(prompt, output)["text_offset"] == [0, 3, 6]
