"""Prompt and params as a caller gives them → `EngineCoreRequest`s that an engine can run; or a refusal.

Pure, apart from the random bits that come in; `tokenize` is slow for long texts and may run on another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec

from roundhouse.frontend.faults import is_fault
from roundhouse.frontend.parent_request import child_id
from roundhouse.grammar.compiler import GrammarCompiler
from roundhouse.grammar.vocabulary import build_vocabulary
from roundhouse.model_store.errors import InvalidText
from roundhouse.model_store.tokenizer import Tokenizer
from roundhouse.protocol import limits
from roundhouse.protocol.errors import ContextLengthExceeded, EngineGenerateError, InvalidRequest
from roundhouse.protocol.messages import EngineCoreRequest, PoolingParams
from roundhouse.protocol.sampling import SamplingParams

logger = logging.getLogger(__name__)

SEED_BITS = 64

NO_SEED = -1
"""What some clients send for None."""


class TextPrompt(TypedDict, total=False):
    """A prompt with options, as a mapping: exactly one of the first two."""

    prompt: str
    prompt_token_ids: Sequence[int]
    cache_salt: str


Prompt = str | Sequence[int] | TextPrompt | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A prompt and params of which everything was checked but the number of tokens and what they are.

    Either `text`, or `token_ids`, which are ints at least.
    """

    text: str | None
    token_ids: list[int] | None
    params: SamplingParams | PoolingParams
    cache_salt: str | None
    add_special_tokens: bool

    @property
    def num_choices(self) -> int:
        return self.params.n if isinstance(self.params, SamplingParams) else 1

    @property
    def has_grammar(self) -> bool:
        return isinstance(self.params, SamplingParams) and self.params.structured_outputs is not None


class InputProcessor:
    """`random_bits(k)` gives k random bits, for requests without a seed. `pooling_tasks`: what the engines serve."""

    def __init__(
        self, tokenizer: Tokenizer, random_bits: Callable[[int], int], *, pooling_tasks: frozenset[str] = frozenset()
    ) -> None:
        self._tokenizer = tokenizer
        self._random_bits = random_bits
        self._pooling_tasks = pooling_tasks
        self._grammars = GrammarCompiler(lambda: build_vocabulary(tokenizer, tokenizer.vocab_size))
        self._more_stop_token_ids = tokenizer.stop_token_ids - {tokenizer.eos_token_id}

    def parse(
        self,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        tokenization_kwargs: Mapping[str, Any] | None,
        max_model_len: int,
    ) -> ParsedRequest:
        """Cheap for any size of prompt. Raises `InvalidRequest`, or `ContextLengthExceeded` for what can never fit."""
        self._verify_params(params, max_model_len)
        options: Mapping[str, Any] = prompt if isinstance(prompt, Mapping) else {}
        content = _content(options) if isinstance(prompt, Mapping) else prompt
        cache_salt = _cache_salt(options.get("cache_salt"))
        add_special_tokens = _add_special_tokens(tokenization_kwargs)
        if isinstance(content, str):
            if len(content) > limits.MAX_CHARS_PER_TOKEN * max_model_len:
                raise _too_long(max_model_len, f"{len(content)} characters, which cannot fit")
            text, token_ids = content, None
        elif isinstance(content, Sequence) and not isinstance(content, _BYTES) and set(map(type, content)) <= {int}:
            text, token_ids = None, list(content)
        else:
            raise InvalidRequest("a prompt is a text or a list of token ids", param="prompt")
        if not content:
            raise InvalidRequest("the prompt is empty", param="prompt")
        return ParsedRequest(text, token_ids, params, cache_salt, add_special_tokens)

    def check_grammar(self, parsed: ParsedRequest) -> None:
        """Compiles the grammar of a request that `has_grammar`; an engine does so again. Thread-safe.

        Raises `InvalidRequest`, and `ModelError` when the model's vocabulary does not do for grammars.
        """
        if isinstance(parsed.params, SamplingParams) and parsed.params.structured_outputs is not None:
            self._grammars.compile(parsed.params.structured_outputs)

    def tokenize(self, parsed: ParsedRequest) -> list[int]:
        """The prompt's token ids. Thread-safe.

        Raises `InvalidRequest` for text that has no UTF-8 form, and `EngineGenerateError` when the tokenizer fails.
        """
        if parsed.token_ids is not None:
            return parsed.token_ids
        assert parsed.text is not None
        try:
            return self._tokenizer.encode(parsed.text, parsed.add_special_tokens)
        except InvalidText as error:
            raise InvalidRequest(error.message, param="prompt") from None
        except BaseException as error:
            if not is_fault(error):
                raise
            logger.exception("the tokenizer failed on a prompt of %d characters", len(parsed.text))
            raise EngineGenerateError("the prompt could not be tokenized") from error

    def make_requests(
        self,
        request_id: str,
        parsed: ParsedRequest,
        token_ids: list[int],
        *,
        max_model_len: int,
        arrival_time: float,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        trace_headers: dict[str, str] | None = None,
    ) -> list[EngineCoreRequest]:
        """One request per choice, ready to be sent. Raises a `RequestError` when the tokens do not do."""
        self._verify_token_ids(token_ids)
        params = parsed.params
        pooling_params = params if isinstance(params, PoolingParams) else None
        sampling_params = params if isinstance(params, SamplingParams) else None
        room = max_model_len - len(token_ids)
        if room < (0 if sampling_params is None else 1):
            raise _too_long(max_model_len, f"{len(token_ids)} tokens, and the answer needs at least one")
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=None if sampling_params is None else self._engine_params(sampling_params, room),
            arrival_time=arrival_time,
            eos_token_id=self._tokenizer.eos_token_id,
            priority=priority,
            cache_salt=parsed.cache_salt,
            pooling_params=pooling_params,
            data_parallel_rank=data_parallel_rank,
            trace_headers=trace_headers,
        )
        return [_child(request, index, parsed.num_choices) for index in range(parsed.num_choices)]

    def _verify_params(self, params: SamplingParams | PoolingParams, max_model_len: int) -> None:
        if isinstance(params, PoolingParams):
            if params.task not in self._pooling_tasks:
                raise InvalidRequest(f"this model does not serve the task {params.task!r}", param="task")
            return
        params.verify(vocab_size=self._tokenizer.vocab_size)
        if params.max_tokens is not None and params.max_tokens > max_model_len:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {max_model_len} tokens. "
                f"However, max_tokens is {params.max_tokens}.",
                param="max_tokens",
            )

    def _verify_token_ids(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        size = self._tokenizer.vocab_size
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < size:
                raise InvalidRequest(f"prompt: token id {token_id} is outside the vocabulary of {size}", param="prompt")

    def _engine_params(self, params: SamplingParams, room: int) -> SamplingParams:
        """The client's params with everything decided that the frontend decides, and without what it does itself.

        A request that would not fit to its end is cut where the context ends, as people know it from vLLM.
        """
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        more_stops = frozenset[int]() if params.ignore_eos else self._more_stop_token_ids
        self._refuse_only_stops(params, more_stops)
        return msgspec.structs.replace(
            params,
            n=1,
            seed=self._random_bits(SEED_BITS) if params.seed in (None, NO_SEED) else params.seed % 2**SEED_BITS,
            max_tokens=max_tokens,
            min_tokens=min(params.min_tokens, max_tokens),
            stop=[],
            stop_token_ids=[*params.stop_token_ids, *sorted(more_stops.difference(params.stop_token_ids))],
        )

    def _refuse_only_stops(self, params: SamplingParams, more_stops: frozenset[int]) -> None:
        """Before `min_tokens` nothing that stops may be sampled, so something else has to be allowed."""
        if params.min_tokens == 0 or params.allowed_token_ids is None:
            return
        stops = more_stops.union(params.stop_token_ids)
        if not params.ignore_eos and self._tokenizer.eos_token_id is not None:
            stops |= {self._tokenizer.eos_token_id}
        if stops.issuperset(params.allowed_token_ids):
            raise InvalidRequest(
                "allowed_token_ids holds stop tokens only, and min_tokens forbids these", param="allowed_token_ids"
            )


def _child(request: EngineCoreRequest, index: int, n: int) -> EngineCoreRequest:
    """Choices share the seed: their index is part of the sampling counter. The prompt's logprobs are asked for once."""
    if n == 1:
        return request
    params = request.sampling_params
    if index > 0 and params is not None:
        params = msgspec.structs.replace(params, prompt_logprobs=None)
    return msgspec.structs.replace(
        request, request_id=child_id(request.request_id, index, n), child_index=index, sampling_params=params
    )


_BYTES = (bytes, bytearray, memoryview)

_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})


def _content(prompt: Mapping[str, Any]) -> Any:
    unknown = sorted(str(key) for key, value in prompt.items() if key not in _PROMPT_KEYS and value is not None)
    if unknown:
        raise InvalidRequest(f"a prompt has no {unknown[0]!r}: it is text or token ids", param="prompt")
    given = [prompt[key] for key in ("prompt", "prompt_token_ids") if prompt.get(key) is not None]
    if len(given) != 1:
        raise InvalidRequest("a prompt has either prompt or prompt_token_ids", param="prompt")
    return given[0]


def _cache_salt(salt: Any) -> str | None:
    if salt is not None and not (isinstance(salt, str) and 0 < len(salt) <= limits.MAX_CACHE_SALT_CHARS):
        raise InvalidRequest(
            f"cache_salt is a text of 1 to {limits.MAX_CACHE_SALT_CHARS} characters", param="cache_salt"
        )
    return salt


def _add_special_tokens(tokenization_kwargs: Mapping[str, Any] | None) -> bool:
    options = dict(tokenization_kwargs or {})
    value = options.pop("add_special_tokens", True)
    if options or not isinstance(value, bool):
        raise InvalidRequest("tokenization_kwargs knows add_special_tokens, true or false", param="tokenization_kwargs")
    return value


def _too_long(max_model_len: int, given: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {max_model_len} tokens. However, the prompt has {given}.",
        param="prompt",
    )
