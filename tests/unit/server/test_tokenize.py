from collections.abc import Sequence
from typing import Any

import pytest

from roundhouse.server.app import build_app
from tests.support.asgi import Answer, post
from tests.support.faulty_tokenizer import FAULTS
from tests.support.scripted_llm import MAX_MODEL_LEN, SETTINGS, ByteTokenizer, ScriptedLLM, server_state, spell

HI = [{"role": "user", "content": "hi"}]


def ask(path: str, body: Any) -> Answer:
    return post(build_app(server_state(ScriptedLLM(spell("a"))), SETTINGS), path, body)


def test_a_text() -> None:
    assert ask("/tokenize", {"prompt": "Hi", "return_token_strs": True}).json == {
        "count": 2,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": [72, 105],
        "token_strs": ["H", "i"],
    }


def test_messages_are_what_the_chat_route_makes_of_them() -> None:
    answer = ask("/tokenize", {"messages": HI, "add_generation_prompt": False}).json
    assert (bytes(answer["tokens"]), answer["token_strs"]) == (b"[user]hi", None)


def test_ids_become_text_again() -> None:
    assert ask("/detokenize", {"tokens": [72, 105]}).json == {"prompt": "Hi"}
    assert ask("/detokenize", {"tokens": []}).json == {"prompt": ""}
    assert ask("/detokenize", {"tokens": [72] * 4 * MAX_MODEL_LEN}).json == {"prompt": "H" * 4 * MAX_MODEL_LEN}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a" * (MAX_MODEL_LEN * 128 + 1)}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"messages": HI, "chat_template": "x"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [256]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [2**63]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [72] * (4 * MAX_MODEL_LEN + 1)}, "tokens"),
    ],
)
def test_bad_bodies_are_refused_with_the_field(path: str, body: Any, param: str) -> None:
    answer = ask(path, body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "Hi"}), ("/detokenize", {"tokens": [72]})])
def test_a_tokenizer_that_breaks_is_an_answer_of_its_own(path: str, body: Any, fault: str) -> None:
    class Broken(ByteTokenizer):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            FAULTS[fault]()

        def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
            FAULTS[fault]()

    state = server_state(ScriptedLLM(spell("a")), tokenizer=Broken())
    answer = post(build_app(state, SETTINGS), path, body)
    assert (answer.status, answer.json["error"]["code"]) == (500, "engine_generate_error")
