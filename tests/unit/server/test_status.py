import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter

import roundhouse
from roundhouse.server.app import build_app
from roundhouse.server.state import Health
from tests.support.asgi import call, get
from tests.support.scripted_llm import MODEL, SETTINGS, ScriptedLLM, server_state, spell


def app(health: Health = Health.OK, **changes):
    return build_app(server_state(ScriptedLLM(spell("a")), health, **changes), SETTINGS)


@pytest.mark.parametrize("path", ["/health", "/ping"])
@pytest.mark.parametrize(
    ("health", "status", "body"),
    [(Health.OK, 200, b""), (Health.ASLEEP, 200, b"asleep")],
)
def test_a_probe_is_answered(path: str, health: Health, status: int, body: bytes) -> None:
    answer = get(app(health), path)
    assert (answer.status, answer.body) == (status, body)


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_a_server_without_engines_is_down(path: str) -> None:
    answer = get(app(Health.DOWN), path)
    assert (answer.status, answer.headers["retry-after"], answer.json["error"]["code"]) == (503, "1", "no_engine")


@pytest.mark.parametrize("path", ["/health", "/ping"])
@pytest.mark.parametrize(("health", "status"), [(Health.OK, 200), (Health.ASLEEP, 200), (Health.DOWN, 503)])
def test_a_probe_may_ask_for_the_status_alone(path: str, health: Health, status: int) -> None:
    assert asyncio.run(call(app(health), "HEAD", path)).status == status


def test_version() -> None:
    assert get(app(), "/version").json == {"version": roundhouse.__version__}


def test_metrics_are_those_of_the_registry_that_was_given() -> None:
    registry = CollectorRegistry()
    Counter("tokens", "How many.", registry=registry).inc(3)
    answer = get(app(registry=registry), "/metrics")
    assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert "tokens_total 3.0" in answer.body.decode().splitlines()


def test_openmetrics_for_who_asks_for_it() -> None:
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    answer = asyncio.run(call(app(), "GET", "/metrics", headers=accept))
    assert answer.headers["content-type"].startswith("application/openmetrics-text")


def test_the_root_points_on() -> None:
    assert get(app(), "/").json == {
        "server": f"roundhouse {roundhouse.__version__}",
        "models": [MODEL, "alias"],
        "api": "/v1",
        "docs": "/docs",
    }
