import pytest

from roundhouse.server.app import build_app
from tests.support.asgi import get
from tests.support.scripted_llm import CREATED, MAX_MODEL_LEN, MODEL, SETTINGS, ScriptedLLM, server_state, spell


def card(name: str) -> dict:
    return {
        "id": name,
        "object": "model",
        "created": CREATED,
        "owned_by": "roundhouse",
        "root": MODEL,
        "parent": None,
        "max_model_len": MAX_MODEL_LEN,
        "permission": [],
    }


def app():
    return build_app(server_state(ScriptedLLM(spell("a"))), SETTINGS)


def test_all_names_are_listed() -> None:
    assert get(app(), "/v1/models").json == {"object": "list", "data": [card(MODEL), card("alias")]}


@pytest.mark.parametrize("name", [MODEL, "alias"])
def test_one_is_found_by_its_name(name: str) -> None:
    assert get(app(), f"/v1/models/{name}").json == card(name)


@pytest.mark.parametrize("name", ["x", "tiny", "Alias", "x" * 1000])
def test_another_is_not(name: str) -> None:
    answer = get(app(), f"/v1/models/{name}")
    error = answer.json["error"]
    assert (answer.status, error["type"], error["param"], error["code"]) == (
        404,
        "NotFoundError",
        "model",
        "model_not_found",
    )
    assert len(answer.body) < 500
