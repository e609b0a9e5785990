"""What the admin port shows, and who may change something there."""

import asyncio
from asyncio import Queue
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from roundhouse.frontend.core_client import EngineView
from roundhouse.protocol.messages import SchedulerStats
from roundhouse.server.admin import OPEN_PATHS, Admin, AdminView
from tests.support.asgi import call, get
from tests.support.mesh import hello

LOAD = SchedulerStats(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.5)


def view_of(identity: str, state: str = "admitted") -> EngineView:
    return EngineView(identity, 0, state, hello(identity), LOAD, num_inflight=4, last_heard_s=0.25)


def admin(*, token: str | None = None, is_loopback: bool = True, is_open: bool = True, is_ready: bool = True):
    drained: list[str] = []

    def drain(identity: str) -> bool:
        drained.append(identity)
        return identity == "engine-0"

    made = Admin(is_ready=lambda: is_ready, token=token, is_loopback=is_loopback)
    registry = CollectorRegistry()
    Counter("tokens", "How many.", registry=registry).inc(3)
    if is_open:
        views = [view_of("engine-0"), view_of("engine-1", "draining")]
        made.open(AdminView(lambda: views, lambda: 7, drain, registry))
    return made, drained


def post(made: Admin, body: bytes, **headers: str):
    return asyncio.run(call(made.app, "POST", "/drain", body, headers))


def test_it_lives_before_the_model_is_there() -> None:
    made, _ = admin(is_open=False, is_ready=False)
    assert [get(made.app, path).status for path in ("/livez", "/readyz", "/metrics", "/engines", "/load")] == [
        200,
        503,
        503,
        503,
        503,
    ]
    assert post(made, b'{"engine": "engine-0"}').status == 503


def test_ready_has_nothing_to_do_with_engines() -> None:
    assert get(admin()[0].app, "/readyz").status == 200


def test_engines() -> None:
    assert get(admin()[0].app, "/engines").json[0] == {
        "identity": "engine-0",
        "engine_index": 0,
        "epoch": [1, 1],
        "state": "admitted",
        "model": "echo",
        "resume_key": "key",
        "num_running": 3,
        "num_waiting": 2,
        "kv_cache_usage": 0.5,
        "max_num_seqs": 64,
        "num_inflight": 4,
        "last_heard_s": 0.25,
        "server_key": 0,
        "num_sessions": 1,
    }


def test_load_of_all_engines_together() -> None:
    assert get(admin()[0].app, "/load").json == {
        "num_engines": 2,
        "num_admitted": 1,
        "num_running": 6,
        "num_waiting": 4,
        "num_unplaced": 7,
        "max_num_seqs": 128,
        "kv_cache_usage": 0.5,
    }


def test_metrics() -> None:
    assert "tokens_total 3.0" in get(admin()[0].app, "/metrics").body.decode().splitlines()


def test_an_engine_is_drained_by_its_identity() -> None:
    made, drained = admin()
    assert post(made, b'{"engine": "engine-0"}').status == 202
    assert post(made, b'{"engine": "engine-9"}').status == 404
    assert drained == ["engine-0", "engine-9"]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"engine": 7}', b'{"engine": "a", "other": 1}', b"x" * 5000])
def test_a_body_that_is_none_changes_nothing(body: bytes) -> None:
    made, drained = admin()
    assert (post(made, body).status, drained) == (400, [])


@pytest.mark.parametrize("path", ["/drain", "/nope", "/", "/docs", "/livez/", "//livez", "/LIVEZ", "/metrics", "/load"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO"])
def test_whatever_is_not_reading_needs_the_token_also_where_no_route_is(method: str, path: str) -> None:
    made, _ = admin(token="secret")
    assert asyncio.run(call(made.app, method, path)).status == 403
    assert asyncio.run(call(made.app, method, path, headers={"authorization": "Bearer secret"})).status != 403


@pytest.mark.parametrize("path", ["/drain", "/nope", "/", "/docs", "/openapi.json", "/livez/", "//livez"])
def test_reading_is_open_for_a_short_list_only(path: str) -> None:
    assert get(admin(token="secret")[0].app, path).status == 403
    assert [get(admin(token="secret")[0].app, path).status for path in sorted(OPEN_PATHS)] == [200] * 5


def test_two_tokens_are_none() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer secret")] * 2
    scope = {"type": "http", "method": "POST", "path": "/drain", "headers": headers}
    asyncio.run(admin(token="secret")[0].app(scope, Queue().get, send))
    assert sent[0]["status"] == 403


def test_the_token_is_compared_by_digests_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "roundhouse.server.admin.compare_digest", lambda a, b: compared.append((len(a), len(b))) or a == b
    )
    made, _ = admin(token="secret")
    for token in ("", "s", "secret", "x" * 1000):
        post(made, b"", authorization=f"Bearer {token}")
    assert compared == [(32, 32)] * 4


@pytest.mark.parametrize("authorization", ["", "Bearer wrong", "secret", "Bearer secret "])
def test_with_a_token_nobody_else_changes_anything(authorization: str) -> None:
    made, drained = admin(token="secret")
    assert (post(made, b'{"engine": "engine-0"}', authorization=authorization).status, drained) == (403, [])
    for scheme in ("Bearer", "bearer"):
        assert post(made, b'{"engine": "engine-0"}', authorization=f"{scheme} secret").status == 202


def test_without_a_token_only_the_loopback_address_may_change_something() -> None:
    made, drained = admin(is_loopback=False)
    assert (post(made, b'{"engine": "engine-0"}').status, drained) == (403, [])


def test_a_web_page_changes_nothing() -> None:
    made, drained = admin()
    assert (post(made, b'{"engine": "engine-0"}', origin="http://elsewhere").status, drained) == (403, [])


def test_a_frontend_that_failed_is_neither_alive_nor_ready() -> None:
    made, _ = admin(is_open=False)
    made.open(AdminView(list, lambda: 0, lambda identity: False, CollectorRegistry(), has_failed=lambda: True))
    assert [get(made.app, path).status for path in ("/livez", "/readyz")] == [503, 503]


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_a_probe_may_ask_for_the_status_alone(path: str) -> None:
    assert asyncio.run(call(admin()[0].app, "HEAD", path)).status == 200


def test_an_accept_header_that_makes_no_sense_gets_the_text_format() -> None:
    accept = {"accept": "application/openmetrics-text;version=zz;escaping=foo"}
    answer = asyncio.run(call(admin()[0].app, "GET", "/metrics", headers=accept))
    assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, "text/plain")


@pytest.mark.parametrize("path", ["/v1/models", "/docs", "/openapi.json", "/"])
def test_nothing_else_is_here(path: str) -> None:
    assert get(admin()[0].app, path).status == 404
