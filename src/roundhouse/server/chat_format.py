"""Outputs as chat.completion and chat.completion.chunk."""

from __future__ import annotations

from typing import Any

import msgspec

from roundhouse.frontend.outputs import CompletionOutput, RequestOutput
from roundhouse.server.chunk import ChunkTemplate, encode_text
from roundhouse.server.generation import Generation
from roundhouse.server.logprobs import chat_logprobs
from roundhouse.server.usage import Usage


class ChatFormat:
    """The answer to one request, whole or in chunks; a chat has one prompt."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self.usage = Usage(generation)
        self.chunks = ChunkTemplate(generation, "chat.completion.chunk")
        self._is_opened = False
        self._is_plain = not (
            generation.params.logprobs is not None or generation.return_token_ids or generation.continuous_usage
        )
        head = self.chunks.head
        self._text_heads = [head + b'{"index":%d,"delta":{"content":' % i for i in range(generation.num_choices)]
        self._text_tail = b'},"logprobs":null,"finish_reason":null}' + self.chunks.tail

    def write(self, prompt_index: int, output: RequestOutput, parts: list[bytes]) -> None:
        """Appends the events of one output (deltas) to `parts`."""
        if not self._is_opened:
            self._open(output, parts)
        for choice in output.outputs:
            self.usage.completion_tokens[choice.index] += len(choice.token_ids)
            if self._is_plain and choice.finish_reason is None:
                if choice.text:
                    parts += (self._text_heads[choice.index], encode_text(choice.text), self._text_tail)
            else:
                self._write_detailed(choice, parts)

    def _open(self, output: RequestOutput, parts: list[bytes]) -> None:
        self._is_opened = True
        self.usage.see_prompt(0, output)
        extra = {"prompt_token_ids": output.prompt_token_ids} if self._generation.return_token_ids else {}
        for i in range(self._generation.num_choices):
            opening = {
                "index": i,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            parts.append(self.chunks.event(opening, self._continuous(i), **extra))

    def _write_detailed(self, choice: CompletionOutput, parts: list[bytes]) -> None:
        if not (choice.text or choice.token_ids or choice.finished()):
            return
        with_logprobs = choice.logprobs is not None and bool(choice.logprobs)
        shaped: dict[str, Any] = {
            "index": choice.index,
            "delta": {"content": choice.text} if choice.text or with_logprobs or not choice.finished() else {},
            "logprobs": chat_logprobs(choice.logprobs) if choice.logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        if choice.finished():
            shaped["stop_reason"] = choice.stop_reason
        if self._generation.return_token_ids:
            shaped["token_ids"] = choice.token_ids
        parts.append(self.chunks.event(shaped, self._continuous(choice.index)))

    def _continuous(self, index: int) -> dict[str, Any] | None:
        return self.usage.of_choice(0, index) if self._generation.continuous_usage else None

    def whole(self, outputs: list[RequestOutput]) -> bytes:
        """The answer without a stream, from the last output of the prompt (everything of each choice)."""
        (output,) = outputs
        generation = self._generation
        self.usage.see_prompt(0, output)
        choices: list[dict[str, Any]] = []
        for choice in sorted(output.outputs, key=lambda choice: choice.index):
            self.usage.completion_tokens[choice.index] = len(choice.token_ids)
            choices.append(self._choice(choice))
        body: dict[str, Any] = {
            "id": generation.response_id,
            "object": "chat.completion",
            "created": generation.created,
            "model": generation.model,
            "choices": choices,
            "usage": self.usage.total(),
            "service_tier": None,
            "system_fingerprint": None,
        }
        if generation.return_token_ids:
            body["prompt_token_ids"] = output.prompt_token_ids
        return msgspec.json.encode(body)

    def _choice(self, choice: CompletionOutput) -> dict[str, Any]:
        shaped: dict[str, Any] = {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None if choice.logprobs is None else chat_logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._generation.return_token_ids:
            shaped["token_ids"] = choice.token_ids
        return shaped
