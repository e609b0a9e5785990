"""What the HTTP surface is given: the parts it calls, and its settings. `build_app` takes both; nothing is global."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from roundhouse import clock
from roundhouse.frontend.outputs import RequestOutput, RequestOutputKind
from roundhouse.model_store.chat_template import ChatTemplate
from roundhouse.model_store.model_config import DefaultSampling
from roundhouse.protocol import limits
from roundhouse.protocol.sampling import SamplingParams


class Generates(Protocol):
    """`AsyncLLM`, as far as the HTTP surface knows it."""

    def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        output_kind: RequestOutputKind = ...,
        tokenization_kwargs: Mapping[str, Any] | None = ...,
        priority: int = ...,
    ) -> AsyncGenerator[RequestOutput, None]: ...

    @property
    def max_model_len(self) -> int: ...


class Health(Enum):
    """What `/health` says."""

    OK = "ok"
    ASLEEP = "asleep"
    """No engine is admitted and one can come: 200, so that the door stays open. A request gets 503 until then."""
    DOWN = "down"
    """Nobody can answer a request: 503."""


def health_of(*, is_errored: bool, num_admitted: int, engines_can_come: bool) -> Health:
    """`engines_can_come`: a frontend without an engine may get one, so it is asleep and not down."""
    if is_errored:
        return Health.DOWN
    if num_admitted > 0:
        return Health.OK
    return Health.ASLEEP if engines_can_come else Health.DOWN


class EncodesText(Protocol):
    """`model_store.tokenizer.Tokenizer`, as far as the HTTP surface knows it."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def default_sampling(self) -> DefaultSampling: ...
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def token_to_str(self, token_id: int) -> str: ...


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """served_model_names: what `model` may be in a request; the first is the one when it names none."""

    served_model_names: tuple[str, ...]
    max_body_bytes: int = limits.MAX_BODY_BYTES
    max_body_bytes_in_flight: int = limits.MAX_BODY_BYTES_IN_FLIGHT
    max_body_idle_s: float = limits.MAX_BODY_IDLE_S
    max_body_s: float = limits.MAX_BODY_S
    max_choices: int = limits.MAX_CHOICES


@dataclass(frozen=True, slots=True)
class ServerState:
    """`new_id` makes ids that never repeat. The context's length is asked of `llm`: its engines may hold less than the
    model allows."""

    llm: Generates
    tokenizer: EncodesText
    chat_template: ChatTemplate
    health: Callable[[], Health]
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    wall: clock.Clock = clock.wall
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
