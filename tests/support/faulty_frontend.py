"""`roundhouse` with a frontend that fails on certain requests: `faulty_frontend.py frontend MODEL …`.

What it fails on is in the request, so that it serves all others as ever. Each fault is a crash or a panic; see
`faulty_tokenizer.FAULTS`:

    a prompt with ENCODE[fault]              the tokenizer fails on the prompt
    a message with TEMPLATE                  the chat template raises what no template raises
    the second token DECODE[fault]           the detokenizer fails on it
    the second token LOGPROBS with logprobs  its logprobs cannot be made
    the second token FORMAT                  the answer's chunk, or the whole answer, cannot be written
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roundhouse.cli.main import main
from roundhouse.frontend import detokenizer
from roundhouse.frontend.logprobs import LogprobsProcessor
from roundhouse.frontend.outputs import PositionLogprobs, RequestOutput
from roundhouse.frontend.token_stream import TokenStream
from roundhouse.model_store.chat_template import ChatTemplate
from roundhouse.model_store.tokenizer import Tokenizer
from roundhouse.protocol.messages import LogprobsLists
from roundhouse.server.completion_format import CompletionFormat
from tests.support.faulty_tokenizer import FAULTS, crash

ENCODE = {"crash": "crash-encode", "panic": "panic-encode"}
DECODE = {"crash": 30_001, "panic": 30_002}
LOGPROBS = 30_003
FORMAT = 30_004
TEMPLATE = "crash-template"

encode_as_before = Tokenizer.encode
render_as_before = ChatTemplate.render
positions_as_before = LogprobsProcessor.positions
write_as_before = CompletionFormat.write
whole_as_before = CompletionFormat.whole


def faulty_encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    for fault, mark in ENCODE.items():
        if mark in text:
            FAULTS[fault]()
    return encode_as_before(tokenizer, text, add_special_tokens)


def faulty_render(template: ChatTemplate, messages: Sequence[Any], **options: Any) -> str:
    if TEMPLATE in str(messages):
        crash()
    return render_as_before(template, messages, **options)


def faulty_positions(processor: LogprobsProcessor, new: LogprobsLists, before: Sequence[int]) -> list[PositionLogprobs]:
    if LOGPROBS in before:
        crash()
    return positions_as_before(processor, new, before)


def faulty_write(chunks: CompletionFormat, prompt_index: int, output: RequestOutput, parts: list[bytes]) -> None:
    if any(FORMAT in choice.token_ids for choice in output.outputs) and sum(chunks.usage.completion_tokens):
        crash()
    write_as_before(chunks, prompt_index, output, parts)


def faulty_whole(answer: CompletionFormat, outputs: list[RequestOutput]) -> bytes:
    if any(FORMAT in choice.token_ids for output in outputs for choice in output.outputs):
        crash()
    return whole_as_before(answer, outputs)


class FaultyTokenStream(TokenStream):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._num_steps = dict.fromkeys(DECODE.values(), 0)
        super().__init__(*arguments, **options)

    def step(self, token_id: int) -> str:
        if token_id in self._num_steps:
            self._num_steps[token_id] += 1
        for fault, number in DECODE.items():
            if self._num_steps[number] == 2:
                FAULTS[fault]()
        return super().step(token_id)


def break_frontends(patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """`patch` is called as `setattr` is."""
    patch(Tokenizer, "encode", faulty_encode)
    patch(ChatTemplate, "render", faulty_render)
    patch(LogprobsProcessor, "positions", faulty_positions)
    patch(CompletionFormat, "write", faulty_write)
    patch(CompletionFormat, "whole", faulty_whole)
    patch(detokenizer, "TokenStream", FaultyTokenStream)


if __name__ == "__main__":
    break_frontends()
    main()
