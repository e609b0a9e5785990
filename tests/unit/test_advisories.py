"""docs/adr/0006-known-advisories.md: every row has tests that exist, or a reason; and the tests of all the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from roundhouse.server.app import build_app
from tests.support.asgi import post
from tests.support.scripted_llm import SETTINGS, ScriptedLLM, server_state, spell

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "roundhouse"
PAGE = (ROOT / "docs" / "adr" / "0006-known-advisories.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| advisory", "| ---"))]
NAMED_TEST, NAMED_FILE = re.compile(r"`~(\S+\.py)::(\w+)`"), re.compile(r"`(\w+/\w+\.py)`")
NAMED_TESTS = sorted(set(NAMED_TEST.findall(PAGE)))
NAMED_FILES = sorted(set(NAMED_FILE.findall(PAGE)))
MODULES = sorted(SOURCE.rglob("*.py"))
ROUTES = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
CHAT_ROUTES = ["/v1/chat/completions", "/tokenize"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_has_tests_or_a_reason(row: str) -> None:
    """A reason names what one can look at: a test, or a file of the source that says so."""
    here = row.split("|")[3].strip()
    assert re.match(r"test: `~\S+`|cannot occur: \w", here)
    assert NAMED_TEST.search(here) or NAMED_FILE.search(here)


def test_no_advisory_is_asked_of_twice() -> None:
    ids = [name for row in ROWS for name in re.findall(r"(?:CVE|PYSEC|GHSA)-[\w-]+", row.split("|")[1])]
    assert len(ids) > 50
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(("path", "name"), NAMED_TESTS)
def test_a_test_that_is_named_is_there(path: str, name: str) -> None:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("path", NAMED_FILES)
def test_a_file_that_is_named_is_there(path: str) -> None:
    assert (SOURCE / path).is_file()


UNSERVED_MEDIA = ["image_url", "video_url", "audio_url", "input_audio", "file"]


@pytest.mark.parametrize("kind", UNSERVED_MEDIA)
@pytest.mark.parametrize("path", CHAT_ROUTES)
def test_nothing_that_a_request_names_is_fetched(path: str, kind: str) -> None:
    part = {"type": kind, kind: {"url": "http://127.0.0.1:9/", "data": "", "format": "wav"}}
    answer = post(app(), path, {"messages": [{"role": "user", "content": [part]}], "max_tokens": 3})
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages[0].content[0].type")


FETCHES = {"requests", "httpx", "aiohttp", "urllib3", "urllib.request.urlopen", "http.client"}


@pytest.mark.parametrize("package", ["server", "frontend", "grammar", "protocol", "scheduler", "runner", "engine"])
def test_what_serves_requests_has_nothing_to_fetch_by(package: str) -> None:
    for module in sorted((SOURCE / package).rglob("*.py")):
        assert not calls_and_imports(ast.parse(module.read_text())) & FETCHES, module


@pytest.mark.parametrize("field", ["prompt_embeds", "logits_processors", "kv_transfer_params"])
def test_no_tensor_and_no_code_comes_by_http(field: str) -> None:
    answer = post(app(), "/v1/completions", {"prompt": "a", "max_tokens": 1, field: "gAAA"})
    assert (answer.status, field in answer.json["error"]["message"]) == (400, True)


def calls_and_imports(tree: ast.AST) -> set[str]:
    """Of a module: the dotted names it calls, and the modules it imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
        elif isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


RUNS_CODE = {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "eval", "exec", "torch.load"}
RUNS_CODE_BY_NAME = (".recv_pyobj", ".send_pyobj", ".literal_eval")


def test_no_module_runs_what_it_was_sent() -> None:
    for module in MODULES:
        for name in calls_and_imports(ast.parse(module.read_text())):
            assert name not in RUNS_CODE, f"{module}: {name}"
            assert not name.endswith(RUNS_CODE_BY_NAME), f"{module}: {name}"


def test_no_module_trusts_remote_code() -> None:
    """Whoever loads something by transformers' Auto classes says so each time."""
    num_loads = 0
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, ast.Call):
                continue
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            name, where = ast.unparse(node.func), f"{module}:{node.lineno}"
            assert given.get("trust_remote_code", "False") == "False", where
            if name.startswith("Auto") and name.endswith((".from_pretrained", ".from_config")):
                assert "trust_remote_code" in given, where
                num_loads += 1
    assert num_loads > 2


OUR_OWN_BUGS = {
    # Accounts of the scheduler's own: an id is live once (`scheduler.admission`), a block is free or it is not.
    ("kvcache/block.py", "block is not self._root"),
    ("kvcache/block.py", "block.previous is None"),
    ("kvcache/block_pool.py", "num_blocks <= len(self.free_list)"),
    ("kvcache/block_pool.py", "block.ref_count > 0"),
    ("kvcache/block_pool.py", "block.block_hash is None"),
    ("kvcache/manager.py", "not computed_blocks"),
    ("scheduler/queue.py", "request.request_id not in self._entries"),
    # The plan is the scheduler's, and the runner takes it whole.
    ("runner/input_batch.py", "request.request_id not in self.row_of"),
    ("runner/input_batch.py", "(after <= num_tokens).all()"),
    ("runner/model_runner.py", "request.num_computed_tokens == 0"),
    # `models.determinism` refuses such a model at the start.
    ("runner/attention_tiled.py", "options.softcap is None and options.sinks is None"),
    ("frontend/stop_strings.py", "stops and all(stops)"),
    ("protocol/identity.py", "len(nonce) == ROUTING_NONCE_BYTES"),
}
"""Assertions that no input reaches: the caller has checked, or made, what they look at."""


PACKAGES = [
    *("cli", "engine", "frontend", "grammar", "kvcache", "model_store", "models", "offline", "protocol", "runner"),
    *("scheduler", "server", "telemetry", "transport"),
]


def test_every_package_is_asked_for_its_assertions() -> None:
    assert sorted(path.parent.name for path in SOURCE.glob("*/__init__.py")) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_no_assertion_checks_what_came_from_outside(package: str) -> None:
    """`python -O` leaves assertions out. Here they only tell a reader, and the type checker, what is so anyhow."""
    for module in sorted((SOURCE / package).rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Assert):
                test = ast.unparse(node.test)
                is_narrowing = test.startswith("isinstance(") or test.endswith(" is not None")
                where = str(module.relative_to(SOURCE))
                assert is_narrowing or (where, test) in OUR_OWN_BUGS, f"{where}:{node.lineno}: {test}"


def app() -> Any:
    return build_app(server_state(ScriptedLLM(spell("Hello"))), SETTINGS)


BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def test_the_routes_that_render_are_those() -> None:
    """A new route with a body is asked the questions below as well."""
    paths = build_app(server_state(ScriptedLLM(spell("a"))), SETTINGS).openapi()["paths"]
    assert [path for path, operations in paths.items() if "post" in operations] == ROUTES


@pytest.mark.parametrize("path", CHAT_ROUTES)
@pytest.mark.parametrize(
    "extra", [{"chat_template": "{{ 1 }}"}, {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}]
)
def test_no_route_takes_a_template(path: str, extra: dict[str, Any]) -> None:
    answer = post(app(), path, BODY | extra)
    assert (answer.status, answer.json["error"]["param"]) == (400, next(iter(extra)))


@pytest.mark.parametrize("path", CHAT_ROUTES)
@pytest.mark.parametrize(
    "name", ["tokenize", "messages", "tools", "bos_token", "range", "raise_exception", "self", "loop"]
)
def test_every_route_that_renders_checks_the_arguments(path: str, name: str) -> None:
    answer = post(app(), path, BODY | {"chat_template_kwargs": {name: "x"}})
    assert (answer.status, answer.json["error"]["param"]) == (400, "chat_template_kwargs")
    assert post(app(), path, BODY | {"chat_template_kwargs": {"shout": True}}).status == 200


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "x", "content": [{"type": 1}]}] * 200, "prompt": [1.5] * 800, "tokens": ["a"] * 800},
        {"x" * 3900: 1, "prompt": {"x" * 3900: 1}, "messages": {"x" * 3900: 1}, "tokens": "x" * 3900},
        {"model": "x" * 3900, **BODY, "prompt": "a", "tokens": [1]},
        {"messages": [{"role": "user", "content": [{"type": "x" * 3900}]}], "prompt": [], "tokens": [10**9]},
    ],
    ids=range(4),
)
def test_no_error_is_much_larger_than_what_caused_it(path: str, body: dict[str, Any]) -> None:
    answer = post(app(), path, body)
    assert (answer.status in (400, 404), len(answer.body) < 2000) == (True, True)


def test_no_build_asks_two_indexes() -> None:
    """A package that is missing in one would come from the other, whoever put it there."""
    files = [ROOT / "Dockerfile", ROOT / "Makefile", *(ROOT / "tools").rglob("*"), *(ROOT / ".github").rglob("*")]
    for file in files:
        if file.is_file() and file.suffix not in (".pyc", ".whl"):
            assert not re.search(r"extra-index-url|unsafe-best-match", file.read_text(errors="replace"), re.I), file
