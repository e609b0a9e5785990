"""What breaks inside one request ends that request: the ones beside it get the tokens that they get without it.

Served: a real frontend and a real engine, each made to fail on certain requests (`faulty_frontend`, `faulty_engine`).
Offline: the same faults in one process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundhouse import LLM, LLMEngine, SamplingParams
from roundhouse.protocol.errors import EngineGenerateError
from tests.support import faulty_engine, faulty_frontend
from tests.support.faulty_engine import BAD_LOGPROBS, PARAMS_SEED, SAMPLER_SEED
from tests.support.tiny_chat_model import write_tiny_chat_model

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
READY_TIMEOUT_S = 120.0
LEAVE_TIMEOUT_S = 20.0

PROMPTS = ["Once upon a time", "The capital of France is", "def fibonacci(n):"]
NUM_TOKENS = 300
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
LONG = "word " * 1000
"""More characters than are tokenized on the event loop."""


@dataclass(frozen=True)
class Outcome:
    """What a client saw. num_tokens: that came before the error. code, message: of the error."""

    status: int
    num_tokens: int
    code: str
    message: str


def completion(prompt: str = "A victim", **changes: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **changes}


def only(token_id: int, **changes: Any) -> dict[str, Any]:
    return completion(allowed_token_ids=[token_id], **changes)


def chat(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8}


SAMPLER = "the sampler failed on this request"
NO_PROMPT_LOGPROBS = "the log probabilities of the prompt could not be computed"
UNPROCESSED = "an output of the request could not be processed"
UNTOKENIZED = "the prompt could not be tokenized"
FAILED = ("internal_error", "The server failed on this request.")

# Of each victim: its body, how many tokens come before the error, the error's code and message.
VICTIMS: dict[str, list[tuple[dict[str, Any], int, str, str]]] = {
    "the sampler in a step": [(completion(seed=SAMPLER_SEED), 2, "engine_generate_error", SAMPLER)],
    "the sampler on parameters": [(completion(seed=PARAMS_SEED), 0, "engine_generate_error", SAMPLER)],
    "the engine's logprobs": [
        (completion(logprobs=BAD_LOGPROBS), 0, "engine_generate_error", SAMPLER),
        (
            completion(logprobs=BAD_LOGPROBS, echo=True),
            0,
            "engine_generate_error",
            NO_PROMPT_LOGPROBS,
        ),
    ],
    "the tokenizer": [
        (completion(text + mark), 0, "engine_generate_error", UNTOKENIZED)
        for mark in faulty_frontend.ENCODE.values()
        for text in ("", LONG)
    ],
    "the detokenizer": [
        (only(token_id), 1, "engine_generate_error", UNPROCESSED) for token_id in faulty_frontend.DECODE.values()
    ],
    "the frontend's logprobs": [(only(faulty_frontend.LOGPROBS, logprobs=1), 1, "engine_generate_error", UNPROCESSED)],
    "the chat template": [(chat(faulty_frontend.TEMPLATE), 0, *FAILED)],
    "the answer's format": [(only(faulty_frontend.FORMAT), 1, *FAILED)],
}


class Mesh:
    """A frontend and an engine that fail on certain requests."""

    def __init__(self, log: Path, url: str, processes: list[subprocess.Popen[bytes]]) -> None:
        self.log = log
        self.url = url
        self._processes = processes

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        (value,) = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.split("{")[0] == name]
        return float(value)

    def assert_as_before(self) -> None:
        """Both processes are well, and nothing of any request is left in them."""
        gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage")
        eventually(lambda: not any(self.metric(f"roundhouse_{name}") for name in gauges), self.log)
        assert [process.poll() for process in self._processes] == [None, None]
        assert httpx.get(f"{self.url}/health").status_code == 200
        assert self.metric("roundhouse_mesh_lost_engines_total") == 0


def eventually(condition: Any, log: Path, *, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


@contextmanager
def process(log: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`tests.support.NAME ARGUMENTS`; leaves in order, and soon, when the block ends."""
    with log.open("ab") as stderr:
        started = subprocess.Popen(
            [sys.executable, "-m", f"tests.support.{name}", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "RUST_BACKTRACE": "0"},
        )
    try:
        yield started
        started.send_signal(signal.SIGTERM)
        assert started.wait(LEAVE_TIMEOUT_S) == 0
    finally:
        started.kill()
        started.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> str:
    return str(write_tiny_chat_model(tmp_path_factory.mktemp("models") / "tiny", smollm2_folder))


@pytest.fixture(scope="module")
def mesh(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("mesh")
    log, address = folder / "log", f"ipc://{folder}/mesh"
    tuning = ("--dtype", "float32", "--num-kv-blocks", "600", "--threads", "1")
    with (
        process(log, "faulty_frontend", "frontend", model, "--port", "0", "--mesh-bind", address) as frontend,
        process(log, "faulty_engine", "engine", model, "--frontends", address, "--identity", "e", *tuning) as engine,
    ):
        serving = "; engines connect to"
        eventually(lambda: serving in log.read_text(), log, timeout_s=READY_TIMEOUT_S)
        url = log.read_text().split(serving)[0].rsplit(" at ", 1)[1].removesuffix("/v1")
        eventually(lambda: "is admitted" in log.read_text(), log, timeout_s=READY_TIMEOUT_S)
        yield Mesh(log, url, [frontend, engine])


async def events(client: httpx.AsyncClient, body: dict[str, Any]) -> Any:
    """The decoded events of a stream; an answer that is none is one event, with its status."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    async with client.stream("POST", path, json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            yield json.loads(await answer.aread()) | {"status": answer.status_code}
            return
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


async def bystander(client: httpx.AsyncClient, prompt: str, has_begun: asyncio.Event) -> list[int]:
    token_ids: list[int] = []
    async for event in events(client, completion(prompt, max_tokens=NUM_TOKENS, return_token_ids=True)):
        assert "error" not in event, event
        token_ids += event["choices"][0]["token_ids"]
        if token_ids:
            has_begun.set()
    return token_ids


async def streaming_victim(client: httpx.AsyncClient, body: dict[str, Any]) -> Outcome:
    *chunks, last = [event async for event in events(client, {**body, "return_token_ids": True})]
    num_tokens = sum(len(chunk["choices"][0]["token_ids"]) for chunk in chunks)
    error = last["error"]
    return Outcome(last.get("status", 200), num_tokens, error["code"], error["message"])


async def waiting_victim(client: httpx.AsyncClient, body: dict[str, Any]) -> Outcome:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = await client.post(path, json=body)
    error = answer.json()["error"]
    return Outcome(answer.status_code, 0, error["code"], error["message"])


async def run_beside(mesh: Mesh, victims: list[dict[str, Any]]) -> tuple[list[list[int]], list[Outcome]]:
    """Bystanders that were there before the victims came, and were still there when they had ended."""
    async with httpx.AsyncClient(base_url=mesh.url, timeout=60) as client:
        begun = [asyncio.Event() for _ in PROMPTS]
        bystanders = [
            asyncio.create_task(bystander(client, prompt, event)) for prompt, event in zip(PROMPTS, begun, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        outcomes = await asyncio.gather(
            *(streaming_victim(client, body) for body in victims), *(waiting_victim(client, body) for body in victims)
        )
        assert not any(task.done() for task in bystanders), "the victims ended after their bystanders"
        return await asyncio.gather(*bystanders), outcomes


@pytest.fixture(scope="module")
def undisturbed(mesh: Mesh) -> list[list[int]]:
    """The bystanders' tokens when nobody fails."""

    async def scenario() -> list[list[int]]:
        async with httpx.AsyncClient(base_url=mesh.url, timeout=60) as client:
            return await asyncio.gather(*(bystander(client, prompt, asyncio.Event()) for prompt in PROMPTS))

    found = asyncio.run(scenario())
    assert [len(token_ids) for token_ids in found] == [NUM_TOKENS] * len(PROMPTS)
    return found


@pytest.mark.parametrize("fault", VICTIMS)
def test_what_breaks_in_a_served_request_ends_it_alone(fault: str, mesh: Mesh, undisturbed: list[list[int]]) -> None:
    victims = VICTIMS[fault]
    tokens, outcomes = asyncio.run(run_beside(mesh, [body for body, *_ in victims]))
    streamed, waited = outcomes[: len(victims)], outcomes[len(victims) :]
    assert waited == [Outcome(500, 0, code, message) for _, _, code, message in victims]
    for seen, (_, most_tokens, code, message) in zip(streamed, victims, strict=True):
        # A stream that has begun has its status already. What waits for its client when the error comes is dropped.
        assert seen == Outcome(200 if seen.num_tokens else 500, seen.num_tokens, code, message)
        assert seen.num_tokens <= most_tokens
    assert tokens == undisturbed
    mesh.assert_as_before()


OFFLINE_VICTIMS: dict[str, tuple[SamplingParams, str]] = {
    "the sampler in a step": (SamplingParams(seed=SAMPLER_SEED, max_tokens=8), SAMPLER),
    "the sampler on parameters": (SamplingParams(seed=PARAMS_SEED), SAMPLER),
    "the engine's logprobs": (SamplingParams(logprobs=BAD_LOGPROBS), SAMPLER),
    "the engine's logprobs of the prompt": (SamplingParams(prompt_logprobs=BAD_LOGPROBS), NO_PROMPT_LOGPROBS),
    "the frontend's logprobs": (
        SamplingParams(allowed_token_ids=[faulty_frontend.LOGPROBS], logprobs=1, ignore_eos=True),
        UNPROCESSED,
    ),
    **{
        f"the detokenizer, by a {fault}": (SamplingParams(allowed_token_ids=[token_id], ignore_eos=True), UNPROCESSED)
        for fault, token_id in faulty_frontend.DECODE.items()
    },
}


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patches:
        faulty_engine.break_engines(patches.setattr)
        faulty_frontend.break_frontends(patches.setattr)
        yield LLM(model, dtype="float32", device="cpu", num_kv_blocks=600, num_threads=1)


@pytest.fixture(scope="module")
def undisturbed_offline(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def assert_nothing_is_left(engine: LLMEngine) -> None:
    stats = engine.stats()
    left = (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage)
    assert (left, engine.has_unfinished_requests()) == ((0, 0, 0.0), False)
    assert engine.step() == []


@pytest.mark.parametrize("fault", OFFLINE_VICTIMS)
def test_what_breaks_in_an_offline_request_ends_it_alone(
    fault: str, llm: LLM, undisturbed_offline: list[list[int]]
) -> None:
    victim, message = OFFLINE_VICTIMS[fault]
    outputs = llm.generate([*PROMPTS, "A victim"], [*[GREEDY] * len(PROMPTS), victim], use_tqdm=False)
    *others, failed = outputs
    assert [output.outputs[0].token_ids for output in others] == undisturbed_offline
    assert [output.error for output in others] == [None] * len(PROMPTS)
    assert [choice.finish_reason for choice in failed.outputs] == ["error"]
    assert failed.error is not None
    assert (failed.error.code, failed.error.message) == ("engine_generate_error", message)
    assert_nothing_is_left(llm.llm_engine)


@pytest.mark.parametrize("fault", faulty_frontend.ENCODE)
def test_a_prompt_that_breaks_the_tokenizer_leaves_no_request_offline(
    fault: str, llm: LLM, undisturbed_offline: list[list[int]]
) -> None:
    engine = llm.llm_engine
    token_ids: dict[str, list[int]] = {}
    engine.add_request("0", PROMPTS[0], GREEDY)
    with pytest.raises(EngineGenerateError, match=UNTOKENIZED):
        engine.add_request("1", faulty_frontend.ENCODE[fault], GREEDY)
    engine.add_request("1", PROMPTS[1], GREEDY)
    while engine.has_unfinished_requests():
        for output in engine.step():
            token_ids[output.request_id] = output.outputs[0].token_ids
    assert token_ids == {"0": undisturbed_offline[0], "1": undisturbed_offline[1]}
    assert_nothing_is_left(engine)


@pytest.mark.parametrize("fault", faulty_frontend.ENCODE)
def test_a_prompt_that_breaks_the_tokenizer_is_one_failed_answer(
    fault: str, llm: LLM, undisturbed_offline: list[list[int]]
) -> None:
    mark = faulty_frontend.ENCODE[fault]
    first, failed, *rest = llm.generate([PROMPTS[0], mark, *PROMPTS[1:]], GREEDY, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in (first, *rest)] == undisturbed_offline
    assert (failed.prompt, [choice.finish_reason for choice in failed.outputs]) == (mark, ["error"])
    assert failed.error is not None
    assert failed.error.message == UNTOKENIZED
    assert_nothing_is_left(llm.llm_engine)
