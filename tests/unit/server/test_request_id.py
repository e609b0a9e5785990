import pytest

from roundhouse.server.app import build_app
from tests.support.asgi import Answer, get, post
from tests.support.scripted_llm import SETTINGS, ScriptedLLM, server_state, spell


def ask(header: str | None, from_body: str | None = None) -> Answer:
    app = build_app(server_state(ScriptedLLM(spell("a")), new_id=lambda: "fresh"), SETTINGS)
    body = {"prompt": "a"} | ({} if from_body is None else {"request_id": from_body})
    return post(app, "/v1/completions", body, {} if header is None else {"x-request-id": header})


@pytest.mark.parametrize(
    ("header", "from_body", "expected"),
    [(None, None, "fresh"), ("h", None, "h"), (None, "b", "b"), ("h", "b", "h"), ("x" * 128, None, "x" * 128)],
)
def test_the_id_of_a_request(header: str | None, from_body: str | None, expected: str) -> None:
    answer = ask(header, from_body)
    assert (answer.status, answer.json["id"], answer.headers["x-request-id"]) == (200, f"cmpl-{expected}", expected)


@pytest.mark.parametrize("header", ["", "x" * 129, "é", "a\tb", "a\x00b", "a\x7fb"])
def test_an_id_that_cannot_be_repeated_is_refused(header: str) -> None:
    answer = ask(header)
    assert (answer.status, answer.json["error"]["param"]) == (400, "x-request-id")


def test_every_answer_has_an_id() -> None:
    app = build_app(server_state(ScriptedLLM(spell("a"))), SETTINGS)
    assert [get(app, path, {"x-request-id": "h"}).headers["x-request-id"] for path in ("/health", "/nope")] == [
        "h",
        "h",
    ]
