"""`LLM` on the real model: 200 mixed prompts say what the server says and what transformers says.

The rule is that of `test_parity.py`: greedy, float32; a token that is not transformers' own is allowed only where its
two likeliest logits are closer than `NEAR_TIE`, for at most one prompt in a hundred. Transformers reads each of our
answers in one forward pass, so that its logits stand at every place of every answer.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from roundhouse import LLM, EngineArgs, LLMEngine, SamplingParams
from roundhouse.frontend.outputs import RequestOutput
from roundhouse.model_store import load_tokenizer
from roundhouse.protocol.errors import ConfigError, InvalidRequest
from tests.support.prompts import two_hundred_prompts
from tests.support.serve_process import ServeProcess

NEAR_TIE = 1e-3
MOST_NEAR_TIES = 2
MAX_MODEL_LEN = 1024
NUM_TOKENS = 6

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def llm(smollm2_folder: Path) -> LLM:
    return LLM(
        "smollm2", dtype="float32", max_model_len=MAX_MODEL_LEN, num_kv_blocks=1024, max_num_seqs=32, device="cpu"
    )


@pytest.fixture(scope="module")
def prompts(smollm2_folder: Path) -> list[Any]:
    return two_hundred_prompts(load_tokenizer(smollm2_folder))


@pytest.fixture(scope="module")
def params(prompts: list[Any]) -> list[SamplingParams]:
    """Some with logprobs, some that stop, some that go on behind the end."""
    return [
        SamplingParams(
            temperature=0.0,
            max_tokens=NUM_TOKENS,
            logprobs=2 if index % 5 == 0 else None,
            stop=["."] if index % 7 == 0 else [],
            ignore_eos=index % 2 == 0,
        )
        for index in range(len(prompts))
    ]


@pytest.fixture(scope="module")
def answers(llm: LLM, prompts: list[Any], params: list[SamplingParams]) -> list[RequestOutput]:
    return llm.generate(prompts, params)


@pytest.fixture(scope="module")
def gaps(smollm2_folder: Path, answers: list[RequestOutput]) -> list[list[float]]:
    """How far each answer's token lies under transformers' best logit at its place: 0 where it is the best itself."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    found: list[list[float]] = []
    for answer in answers:
        token_ids = answer.outputs[0].token_ids
        whole = torch.tensor([answer.prompt_token_ids + token_ids[:-1]])
        with torch.inference_mode():
            logits = model(whole, logits_to_keep=len(token_ids)).logits[0]
        found.append((logits.max(-1).values - logits[torch.arange(len(token_ids)), token_ids]).tolist())
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, prompts: list[Any], params: list[SamplingParams]) -> list[Any]:
    """The choices that `roundhouse serve` answers the same prompts with, 32 at a time."""
    arguments = ["--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN), "--device", "cpu"]
    with ServeProcess(tmp_path_factory.mktemp("offline") / "log", "smollm2", arguments) as server:

        def ask(index: int) -> Any:
            prompt, given = prompts[index], params[index]
            body = {
                "model": "smollm2",
                "prompt": prompt["prompt_token_ids"] if isinstance(prompt, dict) else prompt,
                "temperature": 0,
                "max_tokens": NUM_TOKENS,
                "logprobs": given.logprobs,
                "stop": given.stop or None,
                "ignore_eos": given.ignore_eos,
                "return_token_ids": True,
            }
            answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]

        with ThreadPoolExecutor(32) as pool:
            return list(pool.map(ask, range(len(prompts))))


def test_two_hundred_mixed_prompts(prompts: list[Any], answers: list[RequestOutput]) -> None:
    assert len(prompts) == 200
    assert [
        answer.prompt if isinstance(prompt, str) else None for prompt, answer in zip(prompts, answers, strict=True)
    ] == [prompt if isinstance(prompt, str) else None for prompt in prompts]
    assert {answer.outputs[0].finish_reason for answer in answers} == {"stop", "length"}


def test_no_answer_ends_before_its_end(
    answers: list[RequestOutput], params: list[SamplingParams], smollm2_folder: Path
) -> None:
    """What transformers cannot tell of a text: that it was to go on."""
    ends = load_tokenizer(smollm2_folder).stop_token_ids
    for answer, given in zip(answers, params, strict=True):
        choice = answer.outputs[0]
        if choice.finish_reason == "length":
            assert len(choice.token_ids) == NUM_TOKENS
        elif choice.stop_reason in given.stop:
            assert given.stop
        else:
            assert not given.ignore_eos
            assert choice.token_ids[-1] in ends


def test_the_answers_are_those_of_transformers(gaps: list[list[float]]) -> None:
    assert all(gap < NEAR_TIE for answer in gaps for gap in answer)
    assert sum(any(gap > 0 for gap in answer) for answer in gaps) <= MOST_NEAR_TIES


def test_the_answers_are_those_of_the_server(answers: list[RequestOutput], served: list[Any]) -> None:
    different = 0
    for index, (answer, choice) in enumerate(zip(answers, served, strict=True)):
        ours = answer.outputs[0]
        if ours.token_ids != choice["token_ids"]:
            # Transformers agrees with ours everywhere, near ties apart; so this can only be such a tie.
            different += 1
            continue
        assert (ours.text, ours.finish_reason) == (choice["text"], choice["finish_reason"]), index
        if ours.logprobs is not None:
            logprobs = [position.sampled.logprob for position in ours.logprobs]
            assert logprobs == pytest.approx(choice["logprobs"]["token_logprobs"], abs=5e-4), index
    assert different <= MOST_NEAR_TIES


def test_seeds_make_a_script_say_the_same_again(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=10, n=2)
    first, again = (llm.generate("Once upon a time", params)[0] for _ in range(2))
    texts = [choice.text for choice in first.outputs]
    assert texts == [choice.text for choice in again.outputs]
    assert texts[0] != texts[1]


def test_chat(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    (answer,) = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=24))
    assert "Paris" in answer.outputs[0].text
    assert answer.prompt is not None
    assert answer.prompt.endswith("<|im_start|>assistant\n")


def test_bad_prompts_and_settings_are_one_clear_error(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match=r"prompts\[1\]"):
        llm.generate(["Hello", {"prompt_token_ids": []}])
    with pytest.raises(ConfigError, match="max_num_seqs"):
        LLM("smollm2", max_num_seqs=0)
    assert llm.generate("Hello", SamplingParams(max_tokens=1))[0].outputs[0].finish_reason == "length"


def test_the_engine_step_by_step(smollm2_folder: Path) -> None:
    engine = LLMEngine.from_engine_args(EngineArgs(model=str(smollm2_folder), max_model_len=64, num_kv_blocks=16))
    params = SamplingParams(temperature=0.0, max_tokens=4)
    engine.add_request("a", "The capital of France is", params)
    engine.add_request("b", "The capital of Italy is", params)
    texts: dict[str, list[str]] = {"a": [], "b": []}
    while engine.has_unfinished_requests():
        for output in engine.step():
            texts[output.request_id].append(output.outputs[0].text)
            if output.request_id == "b":
                engine.abort_request("b")
    assert len(texts["a"]) == 4
    assert texts["a"][-1].startswith(" Paris")
    assert texts["b"] == [" Rome"]
    assert engine.stats().kv_cache_usage == 0.0


def test_a_script_of_five_lines(tmp_path: Path) -> None:
    """What the README shows, in a process of its own: it prints what it prints, and ends cleanly."""
    script = tmp_path / "script.py"
    script.write_text(
        "from roundhouse import LLM, SamplingParams\n"
        "llm = LLM('smollm2', max_model_len=256)\n"
        "params = SamplingParams(temperature=0.0, max_tokens=8)\n"
        "for answer in llm.generate(['The capital of France is'], params):\n"
        "    print(answer.outputs[0].text)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.startswith(" Paris.")


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "llm" in request.fixturenames:
        llm = request.getfixturevalue("llm")
        stats = llm.llm_engine.stats()
        assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage) == (0, 0, 0.0)
