"""Outputs as text_completion, whole or in chunks; both are of object text_completion."""

from __future__ import annotations

from typing import Any

import msgspec

from roundhouse.frontend.outputs import CompletionOutput, RequestOutput
from roundhouse.server.chunk import ChunkTemplate, encode_text
from roundhouse.server.generation import Generation
from roundhouse.server.logprobs import CompletionLogprobs, joined
from roundhouse.server.state import EncodesText
from roundhouse.server.usage import Usage


class CompletionFormat:
    """Choices are numbered prompt-major: index = prompt × n + k.

    prompt_only: with `echo` and max_tokens 0 the one token that the engine made is dropped.
    """

    def __init__(
        self, generation: Generation, tokenizer: EncodesText, *, echo: bool = False, prompt_only: bool = False
    ) -> None:
        self._generation = generation
        self._tokenizer = tokenizer
        self._echo = echo
        self._prompt_only = prompt_only
        self.usage = Usage(generation)
        self.chunks = ChunkTemplate(generation, "text_completion")
        self._logprobs = [CompletionLogprobs(tokenizer.token_to_str) for _ in range(generation.num_choices)]
        self._is_opened = [False] * len(generation.prompts)
        self._is_plain = not (
            prompt_only
            or generation.params.logprobs is not None
            or generation.return_token_ids
            or generation.continuous_usage
        )
        head = self.chunks.head
        self._text_heads = [head + b'{"index":%d,"text":' % i for i in range(generation.num_choices)]
        self._text_tail = b',"logprobs":null,"finish_reason":null}' + self.chunks.tail

    def write(self, prompt_index: int, output: RequestOutput, parts: list[bytes]) -> None:
        """Appends the events of one output (deltas) to `parts`."""
        first = prompt_index * self._generation.params.n
        if not self._is_opened[prompt_index]:
            self._open(prompt_index, output, parts)
        for choice in output.outputs:
            index = first + choice.index
            if self._is_plain and choice.finish_reason is None:
                self.usage.completion_tokens[index] += len(choice.token_ids)
                if choice.text:
                    parts += (self._text_heads[index], encode_text(choice.text), self._text_tail)
            else:
                self._write_detailed(prompt_index, index, choice, parts)

    def _open(self, prompt_index: int, output: RequestOutput, parts: list[bytes]) -> None:
        """The echoed prompt and its ids go before the first token of each of its choices."""
        self._is_opened[prompt_index] = True
        self.usage.see_prompt(prompt_index, output)
        generation = self._generation
        if not (self._echo or generation.return_token_ids):
            return
        for index in range(prompt_index * generation.params.n, (prompt_index + 1) * generation.params.n):
            shaped: dict[str, Any] = {
                "index": index,
                "text": self._prompt_text(prompt_index) if self._echo else "",
                "logprobs": self._prompt_logprobs(index, output),
                "finish_reason": None,
            }
            if generation.return_token_ids:
                shaped["prompt_token_ids"] = output.prompt_token_ids
                shaped["token_ids"] = []
            parts.append(self.chunks.event(shaped, self._continuous(prompt_index, index)))

    def _write_detailed(self, prompt_index: int, index: int, choice: CompletionOutput, parts: list[bytes]) -> None:
        token_ids = [] if self._prompt_only else choice.token_ids
        text = "" if self._prompt_only else choice.text
        self.usage.completion_tokens[index] += len(token_ids)
        if not (text or token_ids or choice.finished()):
            return
        with_logprobs = bool(choice.logprobs) and not self._prompt_only
        shaped: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs[index].output(choice.logprobs or []) if with_logprobs else None,
            "finish_reason": self._finish_reason(choice),
        }
        if choice.finished():
            shaped["stop_reason"] = None if self._prompt_only else choice.stop_reason
        if self._generation.return_token_ids:
            shaped["token_ids"] = token_ids
        parts.append(self.chunks.event(shaped, self._continuous(prompt_index, index)))

    def _continuous(self, prompt_index: int, index: int) -> dict[str, Any] | None:
        return self.usage.of_choice(prompt_index, index) if self._generation.continuous_usage else None

    def whole(self, outputs: list[RequestOutput]) -> bytes:
        """The answer without a stream, from the last output of each prompt (everything of each choice)."""
        generation = self._generation
        choices: list[dict[str, Any]] = []
        for prompt_index, output in enumerate(outputs):
            self.usage.see_prompt(prompt_index, output)
            for choice in sorted(output.outputs, key=lambda choice: choice.index):
                choices.append(self._choice(prompt_index, output, choice))
        return msgspec.json.encode(
            {
                "id": generation.response_id,
                "object": "text_completion",
                "created": generation.created,
                "model": generation.model,
                "choices": choices,
                "usage": self.usage.total(),
                "system_fingerprint": None,
            }
        )

    def _choice(self, prompt_index: int, output: RequestOutput, choice: CompletionOutput) -> dict[str, Any]:
        index = prompt_index * self._generation.params.n + choice.index
        token_ids = [] if self._prompt_only else choice.token_ids
        self.usage.completion_tokens[index] = len(token_ids)
        prompt_text = self._prompt_text(prompt_index) if self._echo else ""
        shaped: dict[str, Any] = {
            "index": index,
            "text": prompt_text if self._prompt_only else prompt_text + choice.text,
            "logprobs": self._whole_logprobs(index, output, choice),
            "finish_reason": self._finish_reason(choice),
            "stop_reason": None if self._prompt_only else choice.stop_reason,
        }
        if self._generation.return_token_ids:
            shaped["prompt_token_ids"] = output.prompt_token_ids
            shaped["token_ids"] = token_ids
        return shaped

    def _whole_logprobs(self, index: int, output: RequestOutput, choice: CompletionOutput) -> dict[str, Any] | None:
        if self._generation.params.logprobs is None:
            return None
        of_prompt = self._prompt_logprobs(index, output)
        of_output = self._logprobs[index].output([] if self._prompt_only else choice.logprobs or [])
        return of_output if of_prompt is None else joined(of_prompt, of_output)

    def _prompt_logprobs(self, index: int, output: RequestOutput) -> dict[str, Any] | None:
        if not self._echo or output.prompt_logprobs is None:
            return None
        return self._logprobs[index].prompt(output.prompt_token_ids, output.prompt_logprobs)

    def _prompt_text(self, prompt_index: int) -> str:
        prompt = self._generation.prompts[prompt_index]
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode(prompt.token_ids or [], skip_special_tokens=False)

    def _finish_reason(self, choice: CompletionOutput) -> str | None:
        """Nothing was asked for and nothing is left out: a prompt alone ends by its length."""
        return "length" if self._prompt_only and choice.finish_reason == "stop" else choice.finish_reason
