"""How the tokens of a request are chosen and when it ends. The names and meanings are vLLM's, as people know them."""

from __future__ import annotations

import math
import re
from enum import IntEnum
from typing import cast

import msgspec

from roundhouse.protocol import limits
from roundhouse.protocol.errors import InvalidRequest

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy."""

SMALLEST_TEMPERATURE = 0.01
"""A temperature from `GREEDY_BELOW` up to this is raised to it: logits divided by less overflow."""


class FinishReason(IntEnum):
    """Why a request ended, as it stands on the wire; every accepted request ends with exactly one."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return self.name.lower()


class StructuredOutputsParams(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """What the answer has to be, one of: JSON that satisfies a schema, a match of a regular expression, one of some
    texts, a sentence of a grammar (Lark, or GBNF and other EBNF), any JSON object. The names are vLLM's.

    json: the schema as JSON text; a mapping is taken as well and becomes one.
    """

    json: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        if isinstance(cast("object", self.json), dict):
            msgspec.structs.force_setattr(self, "json", msgspec.json.encode(self.json).decode())

    def verify(self) -> None:
        """Raises `InvalidRequest`. Whether there is such a grammar is not known before it is compiled."""
        given = [name for name in ("json", "regex", "choice", "grammar") if getattr(self, name) is not None]
        if len(given) + self.json_object != 1:
            raise _structured("takes exactly one of json, regex, choice, grammar and json_object")
        for name, most in (
            ("json", limits.MAX_SCHEMA_BYTES),
            ("regex", limits.MAX_REGEX_BYTES),
            ("grammar", limits.MAX_GRAMMAR_BYTES),
        ):
            text = getattr(self, name)
            if text is not None and not 0 < _num_bytes(text) <= most:
                raise _structured(f"{name} has 1 to {most} bytes")
        if self.choice is not None:
            if not 0 < len(self.choice) <= limits.MAX_GUIDED_CHOICES:
                raise _structured(f"choice holds 1 to {limits.MAX_GUIDED_CHOICES} texts")
            if not all(self.choice) or sum(map(_num_bytes, self.choice)) > limits.MAX_GUIDED_CHOICES_BYTES:
                raise _structured(
                    f"the texts of choice are not empty and have {limits.MAX_GUIDED_CHOICES_BYTES} bytes at most"
                )


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """Sampling parameters of one request. Fields are only ever appended, each with a default.

    seed: 64 bit; None lets the frontend choose one, so that an engine always has one.
    top_k: 0 or -1 is off. max_tokens: None is up to the model's context.
    logprobs: None is off; k gives the sampled token and the k likeliest (k = 0: the sampled one alone).
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] = {}
    allowed_token_ids: list[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        """Takes what people write for a list: one stop string, or None for nothing."""
        stop = cast("object", self.stop)
        if isinstance(stop, str):
            msgspec.structs.force_setattr(self, "stop", [stop])
        for name, nothing in (("stop", list[str]), ("stop_token_ids", list[int]), ("logit_bias", dict[int, float])):
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, nothing())

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def verify(self, *, vocab_size: int | None = None) -> None:
        """Raises `InvalidRequest` that names the first field out of range. `vocab_size` bounds the token ids given."""
        for check in (self._verify_types, self._verify_numbers, self._verify_lengths, self._verify_stops):
            check()
        self._verify_token_ids(limits.MAX_TOKEN_ID + 1 if vocab_size is None else vocab_size)
        if self.structured_outputs is not None:
            self.structured_outputs.verify()

    def _verify_types(self) -> None:
        """A program may put anything into a field; what came by wire has the right types already."""
        try:
            msgspec.convert(msgspec.structs.astuple(self), SamplingParams)
        except msgspec.ValidationError as error:
            place = re.search(r"\$\[(\d+)\]", str(error))
            name = self.__struct_fields__[int(place[1])] if place else None
            reason = str(error).split(" - at ")[0].lower()
            raise InvalidRequest(f"{name}: {reason}", param=name) from None

    def _verify_numbers(self) -> None:
        _between("temperature", self.temperature, 0.0, 2.0)
        if not (_finite("top_p", self.top_p) and 0.0 < self.top_p <= 1.0):
            raise InvalidRequest(f"top_p must be over 0 and at most 1, got {self.top_p}", param="top_p")
        if not -1 <= self.top_k <= limits.MAX_TOKEN_ID:
            raise InvalidRequest(f"top_k must be 0 (off) or a positive number, got {self.top_k}", param="top_k")
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if not (_finite("repetition_penalty", self.repetition_penalty) and 0.0 < self.repetition_penalty <= 100.0):
            raise InvalidRequest(
                f"repetition_penalty must be over 0 and at most 100, got {self.repetition_penalty}",
                param="repetition_penalty",
            )
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise InvalidRequest("seed must fit 64 bits", param="seed")

    def _verify_lengths(self) -> None:
        if not 1 <= self.n <= limits.MAX_CHOICES:
            raise InvalidRequest(f"n must be between 1 and {limits.MAX_CHOICES}, got {self.n}", param="n")
        if self.n > 1 and self.is_greedy:
            raise InvalidRequest("n must be 1 with temperature 0: all choices would be the same", param="n")
        if self.max_tokens is not None and not 1 <= self.max_tokens <= limits.MAX_TOKEN_ID:
            raise InvalidRequest(
                f"max_tokens must be between 1 and {limits.MAX_TOKEN_ID}, got {self.max_tokens}", param="max_tokens"
            )
        if self.min_tokens < 0 or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            raise InvalidRequest(
                f"min_tokens must be between 0 and max_tokens ({self.max_tokens}), got {self.min_tokens}",
                param="min_tokens",
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= limits.MAX_LOGPROBS:
                raise InvalidRequest(f"{name} must be between 0 and {limits.MAX_LOGPROBS}, got {value}", param=name)

    def _verify_stops(self) -> None:
        if len(self.stop) > limits.MAX_STOP_STRINGS:
            raise InvalidRequest(f"stop holds at most {limits.MAX_STOP_STRINGS} strings", param="stop")
        for text in self.stop:
            if not text:
                raise InvalidRequest("a stop string may not be empty", param="stop")
            if len(text) > limits.MAX_STOP_CHARS:
                raise InvalidRequest(f"a stop string has at most {limits.MAX_STOP_CHARS} characters", param="stop")
        if self.stop and not self.detokenize:
            raise InvalidRequest("stop strings need detokenize", param="stop")

    def _verify_token_ids(self, vocab_size: int) -> None:
        if len(self.stop_token_ids) > limits.MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids holds at most {limits.MAX_STOP_TOKEN_IDS} ids", param="stop_token_ids"
            )
        _ids("stop_token_ids", self.stop_token_ids, vocab_size)
        if len(self.logit_bias) > limits.MAX_LOGIT_BIAS:
            raise InvalidRequest(f"logit_bias holds at most {limits.MAX_LOGIT_BIAS} entries", param="logit_bias")
        _ids("logit_bias", list(self.logit_bias), vocab_size)
        for bias in self.logit_bias.values():
            _finite("logit_bias", bias)
        if self.allowed_token_ids is not None:
            if not 0 < len(self.allowed_token_ids) <= limits.MAX_ALLOWED_TOKEN_IDS:
                raise InvalidRequest("allowed_token_ids may not be empty or huge", param="allowed_token_ids")
            _ids("allowed_token_ids", self.allowed_token_ids, vocab_size)


def _structured(what: str) -> InvalidRequest:
    return InvalidRequest(f"structured_outputs: {what}", param="structured_outputs")


def _num_bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise _structured("a text holds half of a surrogate pair, which is no character") from None


def _finite(name: str, value: float) -> bool:
    if not math.isfinite(value):
        raise InvalidRequest(f"{name} must be a finite number", param=name)
    return True


def _between(name: str, value: float, low: float, high: float) -> None:
    if not (_finite(name, value) and low <= value <= high):
        raise InvalidRequest(f"{name} must be between {low:g} and {high:g}, got {value:g}", param=name)


def _ids(name: str, token_ids: list[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"{name}: token id {token_id} is outside the vocabulary of {vocab_size}", param=name)
