"""A generating body's sampling fields, with the model's own defaults under them, as checked `SamplingParams`."""

from __future__ import annotations

from typing import TypeVar

from roundhouse.model_store.model_config import DefaultSampling
from roundhouse.protocol import limits
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import SamplingParams
from roundhouse.server.schema import GenerationBody
from roundhouse.server.structured_outputs import make_structured_outputs

T = TypeVar("T")

MAX_LOGIT_BIAS_VALUE = 100.0
NO_SEED = -1


def make_sampling_params(
    body: GenerationBody,
    defaults: DefaultSampling,
    *,
    vocab_size: int,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Raises `InvalidRequest`. `max_tokens` None is up to the model's context; `logprobs` as in `SamplingParams`."""
    params = SamplingParams(
        n=_or(body.n, 1),
        temperature=_or(body.temperature, _or(defaults.temperature, 1.0)),
        top_p=_or(body.top_p, _or(defaults.top_p, 1.0)),
        top_k=_or(body.top_k, _or(defaults.top_k, 0)),
        min_p=_or(body.min_p, _or(defaults.min_p, 0.0)),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, _or(defaults.repetition_penalty, 1.0)),
        seed=None if body.seed == NO_SEED else body.seed,
        max_tokens=max_tokens,
        min_tokens=_or(body.min_tokens, 0),
        stop=[body.stop] if isinstance(body.stop, str) else (body.stop or []),
        stop_token_ids=body.stop_token_ids or [],
        include_stop_str_in_output=_or(body.include_stop_str_in_output, False),
        ignore_eos=_or(body.ignore_eos, False),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias={token_id: _clamp(bias) for token_id, bias in (body.logit_bias or {}).items()},
        allowed_token_ids=body.allowed_token_ids,
        skip_special_tokens=_or(body.skip_special_tokens, True),
        spaces_between_special_tokens=_or(body.spaces_between_special_tokens, True),
        structured_outputs=make_structured_outputs(body),
    )
    params.verify(vocab_size=vocab_size)
    return params


def check_envelope(body: GenerationBody) -> None:
    """Checks what stands beside the sampling parameters. Raises `InvalidRequest`."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
    if body.priority is not None and not -(2**31) <= body.priority < 2**31:
        raise InvalidRequest("priority must fit 32 bits", param="priority")
    if (salt := body.cache_salt) is not None and not (
        0 < len(salt) <= limits.MAX_CACHE_SALT_CHARS and not set(salt) & set("@/\\\0")
    ):
        raise InvalidRequest(
            f"cache_salt has 1 to {limits.MAX_CACHE_SALT_CHARS} characters, none of them @ / \\ or NUL",
            param="cache_salt",
        )


def check_num_choices(n: int | None, num_prompts: int, max_choices: int) -> None:
    """Refuses what would fan out too far, before anything is made for a choice. Raises `InvalidRequest`."""
    if not 1 <= _or(n, 1) <= max_choices:
        raise InvalidRequest(f"n must be between 1 and {max_choices}, got {n}", param="n")
    if _or(n, 1) * num_prompts > max_choices:
        raise InvalidRequest(f"n × prompts is {_or(n, 1) * num_prompts}, at most {max_choices} are served", param="n")


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _clamp(bias: float) -> float:
    return max(-MAX_LOGIT_BIAS_VALUE, min(MAX_LOGIT_BIAS_VALUE, bias))
