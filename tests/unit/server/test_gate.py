"""Who comes in: everything needs a key but a short list of paths."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from fastapi import FastAPI

from roundhouse.server.api_keys import KeyRing, key_of
from roundhouse.server.app import build_app
from roundhouse.server.cache_salt import request_salt
from roundhouse.server.gate import PUBLIC_PATHS, Gate
from tests.support.asgi import call, get, post
from tests.support.scripted_llm import SETTINGS, ScriptedLLM, server_state, spell

KEY = "rh-the-key-of-a-client"
RING = KeyRing([key_of(KEY, name="ann"), key_of("rh-another-key", name="bob")])
REFUSED = {
    "message": "The API key is not valid",
    "type": "invalid_request_error",
    "param": None,
    "code": "invalid_api_key",
}


def app() -> FastAPI:
    return build_app(server_state(ScriptedLLM(spell("Hello"))), SETTINGS)


def gate(inside: Any = None, **settings: Any) -> Gate:
    return Gate(app() if inside is None else inside, lambda: RING, **settings)


def bearer(key: str = KEY) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def routes() -> list[tuple[str, str]]:
    """(method, path) of every route of the application, its documents and what FastAPI adds included."""
    found: list[tuple[str, str]] = []
    waiting: list[Any] = list(app().routes)
    while waiting:
        route = waiting.pop()
        waiting += getattr(getattr(route, "original_router", None), "routes", [])
        found += [(method, route.path) for method in getattr(route, "methods", None) or ()]
    return sorted(found)


def test_the_routes_that_are_walked_are_all_there_are() -> None:
    assert {path for _, path in routes()} >= {"/v1/chat/completions", "/tokenize", "/docs", "/openapi.json", "/"}


@pytest.mark.parametrize(("method", "path"), routes())
def test_every_route_but_the_public_ones_needs_a_key(method: str, path: str) -> None:
    answer = asyncio.run(call(gate(), method, path.replace("{model_id:path}", "x")))
    if path in PUBLIC_PATHS:
        assert answer.status != 401
    else:
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FOO"])
@pytest.mark.parametrize(
    "path",
    [
        *("/nope", "/v1/", "//health", "/health/", "/HEALTH", "/health/../v1/models", "/health ", "/health\0", "", "*"),
        *("/v1/models?/health", "/./health", "/health;a", "/metrics"),
    ],
)
def test_what_is_no_route_needs_one_as_well(method: str, path: str) -> None:
    answer = asyncio.run(call(gate(), method, path))
    assert answer.status == 401
    assert (answer.body == b"") == (method == "HEAD")


def test_the_answer_has_the_shape_of_openais() -> None:
    answer = get(gate(), "/v1/models", bearer("wrong"))
    assert (answer.status, answer.json, answer.headers) == (
        401,
        {"error": REFUSED},
        {"content-type": "application/json", "content-length": str(len(answer.body)), "www-authenticate": "Bearer"},
    )


@pytest.mark.parametrize("path", ["/health", "/ping", "/version"])
def test_probes_need_none(path: str) -> None:
    assert get(gate(), path).status == 200


def test_more_paths_can_be_public() -> None:
    assert get(gate(public_paths=PUBLIC_PATHS | {"/metrics"}), "/metrics").status == 200


@pytest.mark.parametrize("value", ["Bearer {}", "bearer {}", "BEARER  {}"])
def test_a_key_lets_in(value: str) -> None:
    answer = post(gate(), "/v1/completions", {"prompt": "a"}, {"authorization": value.format(KEY)})
    assert (answer.status, answer.json["choices"][0]["text"]) == (200, "Hello")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Bearer {KEY.upper()}"},
        {"authorization": f"Bearer {KEY}, Bearer {KEY}"},
        {"authorization": f"Bearer x {KEY}"},
        {"authorization": f"Bearer {KEY} "},
        {"authorization": "Bearer \xff\xfe"},
        {"authorization": "Bearer " + "x" * 60_000},
        {"x-api-key": KEY},
        {"api-key": KEY},
        {"cookie": f"Authorization=Bearer {KEY}"},
        {"proxy-authorization": f"Bearer {KEY}"},
    ],
    ids=range(18),
)
def test_nothing_else_does(headers: dict[str, str]) -> None:
    answer = post(gate(), f"/v1/completions?api_key={KEY}", {"prompt": "a"}, headers)
    assert answer.status == 401
    assert KEY not in answer.body.decode()


def scope_of(kind: str, path: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> dict[str, Any]:
    return {"type": kind, "path": path, "headers": list(headers), "method": "GET"}


def sent_for(scope: dict[str, Any], made: Gate) -> list[Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("nothing is read of who does not come in")

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(made(scope, receive, send))
    return sent


async def inner(scope: Any, receive: Any, send: Any) -> None:
    await send("inside")


@pytest.mark.parametrize("keys", [(KEY, KEY), (KEY, "wrong"), ("wrong", KEY)])
def test_two_headers_are_refused_whichever_is_valid(keys: tuple[str, str]) -> None:
    headers = [(b"authorization", f"Bearer {key}".encode()) for key in keys]
    assert sent_for(scope_of("http", "/v1/models", headers), gate(inner))[0]["status"] == 401


@pytest.mark.parametrize("path", ["/v1/realtime", "/health"])
def test_a_websocket_needs_a_key_everywhere(path: str) -> None:
    (closed,) = sent_for(scope_of("websocket", path), gate(inner))
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
    assert sent_for(scope_of("websocket", path, [(b"authorization", b"Bearer " + KEY.encode())]), gate(inner)) == [
        "inside"
    ]


def test_what_the_host_says_changes_no_path() -> None:
    for host in (b"a/health?x=", b"a/?x=/health", b"/health", b"", b"a#/health"):
        scope = scope_of("http", "/v1/models", [(b"host", host)])
        assert sent_for(scope, gate(inner))[0]["status"] == 401


def test_keys_are_asked_for_each_request() -> None:
    rings = [RING, KeyRing([key_of("rh-another-key", name="bob")])]
    made = Gate(app(), lambda: rings[0])
    assert get(made, "/v1/models", bearer()).status == 200
    rings.pop(0)
    assert get(made, "/v1/models", bearer()).status == 401


def salts_of(*requests: tuple[str, str | None], salts_caches: bool = True) -> list[str | None]:
    """Of (key, the body's salt): the salts that `AsyncLLM` gets."""
    llm = ScriptedLLM(spell("Hello"))
    made = Gate(build_app(server_state(llm), SETTINGS), lambda: RING, salts_caches=salts_caches)
    for path, prompt in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", None)):
        for key, salt in requests:
            body: dict[str, Any] = prompt or {"messages": [{"role": "user", "content": "a"}]}
            assert post(made, path, body | ({} if salt is None else {"cache_salt": salt}), bearer(key)).status == 200
    salts = [made.prompt.get("cache_salt") for made in llm.calls]
    assert salts[: len(requests)] == salts[len(requests) :]
    return salts[: len(requests)]


def test_a_key_has_a_cache_of_its_own_and_a_salt_parts_it_again() -> None:
    ann, ann_again, bob, ann_salted, bob_salted = salts_of(
        (KEY, None), (KEY, None), ("rh-another-key", None), (KEY, "s"), ("rh-another-key", "s")
    )
    assert ann == ann_again
    assert len({ann, bob, ann_salted, bob_salted, "s", None}) == 6
    assert RING.keys[0].digest.hex() not in {ann, ann_salted}


def test_one_who_knows_anothers_salt_cannot_send_it() -> None:
    (ann,) = salts_of((KEY, None))
    (bob,) = salts_of(("rh-another-key", ann))
    assert bob != ann


def test_without_the_option_the_bodys_salt_stands_alone() -> None:
    assert salts_of((KEY, None), (KEY, "s"), salts_caches=False) == [None, "s"]
    assert request_salt({}, "s") == "s"
