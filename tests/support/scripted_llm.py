"""`AsyncLLM` without an engine: what it yields is written down, what it was asked and what was aborted is kept.

Its tokens are single bytes, so that a test can name them: id 72 is "H".
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from roundhouse.frontend.outputs import (
    CompletionOutput,
    PositionLogprobs,
    RequestOutput,
    RequestOutputKind,
    TokenLogprob,
)
from roundhouse.model_store.chat_template import ChatTemplate
from roundhouse.model_store.model_config import DefaultSampling
from roundhouse.protocol.errors import ContextLengthExceeded
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.state import Health, ServerSettings, ServerState

MODEL = "tiny/bytes"
VOCAB_SIZE = 256
MAX_MODEL_LEN = 512
CREATED = 1_800_000_000

CHAT_TEMPLATE = (
    "{% if shout %}!{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' and m.content == 'refuse' %}{{ raise_exception('no refusing') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@dataclass(frozen=True)
class ByteTokenizer:
    vocab_size: int = VOCAB_SIZE
    default_sampling: DefaultSampling = field(default_factory=DefaultSampling)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def token_to_str(self, token_id: int) -> str:
        return bytes([token_id]).decode(errors="replace")


@dataclass(frozen=True)
class Call:
    """One `generate`, as it came."""

    prompt: dict[str, Any]
    params: SamplingParams
    request_id: str
    output_kind: RequestOutputKind
    options: dict[str, Any]

    @property
    def prompt_token_ids(self) -> list[int]:
        text = self.prompt.get("prompt")
        return list(self.prompt["prompt_token_ids"] if text is None else text.encode())


@dataclass(frozen=True)
class Delta:
    """What one step brings for one choice."""

    text: str = ""
    index: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None

    @property
    def ids(self) -> list[int]:
        return list(self.text.encode()) if self.token_ids is None else self.token_ids


Step = list[Delta] | Exception | asyncio.Event
"""The deltas of one output, an error to raise, or an event to wait for."""
Script = Callable[[Call], Sequence[Step]]


def spell(text: str, finish_reason: str = "stop") -> Script:
    """Each choice spells `text` byte by byte, up to max_tokens."""

    def script(call: Call) -> list[Step]:
        limit = call.params.max_tokens or len(text)
        letters = list(text[:limit])
        reason = finish_reason if len(text) <= limit else "length"
        return [
            [Delta(letter, k, reason if i == len(letters) - 1 else None) for k in range(call.params.n)]
            for i, letter in enumerate(letters)
        ]

    return script


class ScriptedLLM:
    """`calls` in the order they came; `aborted` the ids whose consumer left early, `ended` each id that is over."""

    max_model_len = MAX_MODEL_LEN

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.aborted: list[str] = []
        self.ended: list[str] = []
        self.started = threading.Semaphore(0)
        self.has_aborted = threading.Semaphore(0)

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE,
        **options: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        call = Call(prompt, sampling_params, request_id, output_kind, options)
        self.calls.append(call)
        if len(call.prompt_token_ids) >= MAX_MODEL_LEN:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {MAX_MODEL_LEN} tokens; the prompt has "
                f"{len(call.prompt_token_ids)}",
                param="prompt",
            )
        try:
            self.started.release()
            async for output in self._play(call):
                yield output
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted.append(request_id)
            self.has_aborted.release()
            raise
        finally:
            self.ended.append(request_id)

    async def _play(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        whole = {k: CompletionOutput(index=k, text="", token_ids=[]) for k in range(call.params.n)}
        unfinished = set(whole)
        is_first = True
        for step in self.script(call):
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                await step.wait()
                continue
            await asyncio.sleep(0)
            deltas = [_completion(call, delta) for delta in step]
            unfinished -= {delta.index for delta in deltas if delta.finished}
            if call.output_kind is RequestOutputKind.DELTA:
                yield _request_output(call, deltas, not unfinished, is_first)
                is_first = False
                continue
            for delta in deltas:
                _add(whole[delta.index], delta)
            if not unfinished:
                yield _request_output(call, list(whole.values()), True, True)


def _completion(call: Call, delta: Delta) -> CompletionOutput:
    logprobs = call.params.logprobs
    return CompletionOutput(
        index=delta.index,
        text=delta.text,
        token_ids=delta.ids,
        logprobs=None if logprobs is None else [position(token_id, logprobs) for token_id in delta.ids],
        finish_reason=delta.finish_reason,
        stop_reason=delta.stop_reason,
    )


def _add(whole: CompletionOutput, delta: CompletionOutput) -> None:
    whole.text += delta.text
    whole.token_ids = whole.token_ids + delta.token_ids
    if delta.logprobs is not None:
        whole.logprobs = (whole.logprobs or []) + delta.logprobs
    whole.finish_reason = delta.finish_reason
    whole.stop_reason = delta.stop_reason


def _request_output(call: Call, outputs: list[CompletionOutput], finished: bool, is_first: bool) -> RequestOutput:
    prompt_logprobs = None
    if is_first and call.params.prompt_logprobs is not None:
        rest = [position(token_id, call.params.prompt_logprobs) for token_id in call.prompt_token_ids[1:]]
        prompt_logprobs = [None, *rest]
    return RequestOutput(
        request_id=call.request_id,
        prompt=call.prompt.get("prompt"),
        prompt_token_ids=call.prompt_token_ids,
        outputs=outputs,
        finished=finished,
        prompt_logprobs=prompt_logprobs,
        num_cached_tokens=0,
    )


def position(token_id: int, num_top: int) -> PositionLogprobs:
    """The chosen token at -0.5 and the `num_top` ids above it."""
    top = [token(token_id + i, -0.5 - i) for i in range(num_top)]
    return PositionLogprobs(sampled=token(token_id, -0.5), top=top)


def token(token_id: int, logprob: float) -> TokenLogprob:
    utf8 = bytes([token_id])
    return TokenLogprob(
        token_id=token_id, token=utf8.decode(errors="replace"), utf8=utf8, logprob=logprob, rank=int(0.5 - logprob)
    )


def server_state(llm: ScriptedLLM, health: Health = Health.OK, **changes: Any) -> ServerState:
    values: dict[str, Any] = {
        "llm": llm,
        "tokenizer": ByteTokenizer(),
        "chat_template": ChatTemplate({"default": CHAT_TEMPLATE}, {"bos_token": "<s>"}),
        "health": lambda: health,
        "wall": lambda: CREATED + 0.5,
    }
    return ServerState(**(values | changes))


SETTINGS = ServerSettings(served_model_names=(MODEL, "alias"))
