"""`roundhouse serve smollm2` as people use it: the OpenAI SDK and curl, clients that leave, engines that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.support.serve_process import ServeProcess

pytestmark = pytest.mark.timeout(300)

MESSAGES: list[Any] = [{"role": "user", "content": "Name a fruit."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Iterator[ServeProcess]:
    with ServeProcess(tmp_path_factory.mktemp("serve") / "log", "smollm2", ["--max-num-seqs", "16"]) as server:
        yield server


@pytest.fixture
def client(server: ServeProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@contextmanager
def long_stream(server: ServeProcess) -> Iterator[Iterator[str]]:
    """The lines of a stream that would go on for minutes. It ends with the block, or when its iterator is dropped."""
    body = {"model": "smollm2", "prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
        yield stream.iter_lines()


def test_sdk_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=MESSAGES, temperature=0, max_tokens=12)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_sdk_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    arguments: dict[str, Any] = {"model": "smollm2", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    finishes = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert finishes == [whole.choices[0].finish_reason]


def test_sdk_async_streams_side_by_side(server: ServeProcess) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.completions.create(
            model="smollm2", prompt=f"{seed} plus one is", max_tokens=8, seed=seed, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def scenario() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(12)))

    texts = asyncio.run(scenario())
    assert len(texts) == 12
    assert all(texts)


def test_a_seed_gives_the_same_choices_again(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = client.completions.create(
            model="smollm2", prompt="My favourite animal is", n=3, temperature=1.0, seed=7, max_tokens=8
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        return [choice.text for choice in answer.choices]

    first = texts()
    assert len(set(first)) > 1
    assert texts() == first


def test_stop_string_and_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt="1, 2, 3, 4, 5,", temperature=0, max_tokens=30, stop=[" 9"], logprobs=2
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == " 6, 7, 8,"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert [len(top) for top in choice.logprobs.top_logprobs or []] == [2] * len(choice.logprobs.tokens)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(server: ServeProcess) -> None:
    body = json.dumps({"model": "smollm2", "messages": MESSAGES, "max_tokens": 5, "stream": True})
    done = subprocess.run(
        ["curl", "-sN", f"{server.url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body],
        capture_output=True,
        check=True,
        timeout=60,
    )
    events = done.stdout.decode().strip().split("\n\n")
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    first = json.loads(events[0].removeprefix("data: "))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"temperature": 3}, 400, "temperature"),
        ({"model": "gpt-5"}, 404, "model"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [49152]}, 400, "prompt"),
        ({"prompt": [[1] * 9000]}, 400, "prompt"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"logit_bias": {"99999": 1}}, 400, "logit_bias"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_input_names_the_field(server: ServeProcess, change: dict[str, Any], status: int, param: str) -> None:
    body = {"model": "smollm2", "prompt": "Hi", "max_tokens": 2, **change}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=30)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_client_that_leaves_frees_its_blocks(server: ServeProcess) -> None:
    with long_stream(server) as lines:
        next(lines)
        server.wait_until(
            lambda: server.metric("roundhouse_num_requests_running") == 1, "a running request", timeout_s=5
        )
        assert server.metric("roundhouse_kv_cache_usage") > 0
    server.wait_until(
        lambda: server.metric("roundhouse_kv_cache_usage") == server.metric("roundhouse_num_requests_running") == 0,
        "free blocks",
        timeout_s=5,
    )


def test_kill_9_of_the_only_engine(server: ServeProcess, client: openai.OpenAI) -> None:
    """Its stream waits for the engine's replacement and goes on there; its client sees a pause."""
    body = {"model": "smollm2", "prompt": "Once", "max_tokens": 40, "ignore_eos": True, "stream": True}
    (engine,) = server.engine_pids()
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=90) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        events = [next(lines)]
        os.kill(engine, signal.SIGKILL)
        server.wait_for_health(503, timeout_s=5)
        events += lines
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert server.engine_pids() != [engine]
    assert server.metric("roundhouse_mesh_resumes_total") == 1
    assert server.metric("roundhouse_mesh_lost_requests_total") == 0
    answer = client.completions.create(model="smollm2", prompt="Hello", max_tokens=3)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


def test_sigterm_finishes_what_runs_and_takes_nothing_new(tmp_path: Path, smollm2_folder: Path) -> None:
    with ServeProcess(tmp_path / "log", "smollm2", ["--grace", "30"]) as server:
        engines = server.engine_pids()
        body = {"model": "smollm2", "prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_health(503, timeout_s=5)
            refused = httpx.post(f"{server.url}/v1/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        assert json.loads(events[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(30) == 0
    assert not any(psutil.pid_exists(pid) for pid in engines)


def test_a_second_sigterm_does_not_wait(tmp_path: Path, smollm2_folder: Path) -> None:
    with ServeProcess(tmp_path / "log", "smollm2", ["--grace", "300"]) as server, long_stream(server) as lines:
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_line("finishing what runs")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0


def test_two_engines_share_the_work_and_one_may_die(tmp_path: Path, smollm2_folder: Path) -> None:
    def goes_on(lines: Iterator[str]) -> bool:
        """Whether thirty more events come, none of them an error."""
        events = 0
        for line in lines:
            assert '"error"' not in line
            events += line.startswith("data: ")
            if events == 30:
                return True
        return False

    with ServeProcess(tmp_path / "log", "smollm2", ["--engines", "2", "--threads", "1"]) as server:
        server.wait_for_line("is admitted", count=2)
        first, second = server.engine_pids()
        with long_stream(server) as one, long_stream(server) as other, ThreadPoolExecutor() as readers:
            streams = [one, other]
            for stream in streams:
                next(stream)
            os.kill(first, signal.SIGKILL)
            assert list(readers.map(goes_on, streams)) == [True, True]
        assert httpx.get(f"{server.url}/health").status_code == 200
        server.wait_for_line("is admitted", count=3)
        assert second in server.engine_pids()


def test_an_engine_does_not_outlive_a_killed_server(tmp_path: Path, smollm2_folder: Path) -> None:
    with ServeProcess(tmp_path / "log", "smollm2") as server:
        engines = [psutil.Process(pid) for pid in server.engine_pids()]
        server.process.kill()
        server.process.wait()
        _, left = psutil.wait_procs(engines, timeout=10)
        assert left == []
