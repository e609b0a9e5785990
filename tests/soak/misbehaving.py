"""Clients that do not do what they should, drawn from one seed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from typing import Any

import msgspec

from tests.soak.mix import CHAT, COMPLETIONS, Request, draw_request, words


class Manner(Enum):
    LEAVES_MID_STREAM = "leaves mid-stream"
    VANISHES = "vanishes before the answer"
    COMES_BACK = "vanishes and comes back"
    HALF_A_HEAD = "half of a head"
    HALF_A_BODY = "half of a body"
    STALLS = "body that stalls"
    READS_SLOWLY = "slow reader"
    ASKS_BADLY = "bad"


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """A client that does not do what it should.

    after_s: how long it goes on before it vanishes. by_reset: whether it does so with RST instead of FIN. detail: what
    is bad. raw_body: what it sends instead of `request`. status: what the server must answer; 0 when it waits for none.
    """

    manner: Manner
    request: Request
    after_s: float = 0.0
    by_reset: bool = False
    detail: str = ""
    raw_body: bytes | None = None
    status: int = 0

    @property
    def kind(self) -> str:
        return f"{self.manner.value}: {self.detail}" if self.detail else self.manner.value

    def encode(self) -> bytes:
        return self.request.encode() if self.raw_body is None else self.raw_body


def misbehaviours(seed: int, model: str) -> Iterator[Misbehaviour]:
    random = Random(f"{seed}/misbehaving")
    while True:
        yield random.choice(MISBEHAVIOURS)(random, model)


def _brief(random: Random, model: str) -> Request:
    """For a client that waits for its answer: it soon makes room for the next one."""
    request = draw_request(random, model)
    return replace(request, body=request.body | {"max_tokens": 4})


def _endless(random: Random, model: str, **more: Any) -> Request:
    """A stream that outlives its client."""
    body = {"model": model, "prompt": words(random, 8), "max_tokens": 400, "ignore_eos": True, "stream": True, **more}
    return Request("endless", COMPLETIONS, body, keeps_alive=False)


def _leaves_mid_stream(random: Random, model: str) -> Misbehaviour:
    request = _endless(random, model, n=random.choice((1, 1, 2)))
    return Misbehaviour(Manner.LEAVES_MID_STREAM, request, random.uniform(0.0, 4.0), random.random() < 0.5)


def _vanishes_before_the_answer(random: Random, model: str) -> Misbehaviour:
    return Misbehaviour(Manner.VANISHES, draw_request(random, model), random.uniform(0.0, 0.3), random.random() < 0.5)


def _reconnects(random: Random, model: str) -> Misbehaviour:
    return Misbehaviour(Manner.COMES_BACK, _brief(random, model), random.uniform(0.0, 1.0))


def _half_sent_head(random: Random, model: str) -> Misbehaviour:
    return Misbehaviour(
        Manner.HALF_A_HEAD, draw_request(random, model), random.uniform(0.0, 3.0), random.random() < 0.5
    )


def _half_sent_body(random: Random, model: str) -> Misbehaviour:
    return Misbehaviour(
        Manner.HALF_A_BODY, draw_request(random, model), random.uniform(0.0, 3.0), random.random() < 0.5
    )


def _stalled_body(random: Random, model: str) -> Misbehaviour:
    return Misbehaviour(Manner.STALLS, draw_request(random, model), status=408)


def _slow_reader(random: Random, model: str) -> Misbehaviour:
    request = _endless(random, model, n=2, logprobs=5)
    return Misbehaviour(Manner.READS_SLOWLY, request, random.uniform(5.0, 20.0), random.random() < 0.5)


def _bad_request(random: Random, model: str) -> Misbehaviour:
    request = _brief(random, model)
    raw = request.encode()
    body = dict(request.body)
    detail, status, raw_body = random.choice(
        (
            ("malformed JSON", 400, raw[: random.randrange(1, len(raw) - 1)]),
            ("not UTF-8", 400, b"\xff\xfe" + raw),
            ("unknown model", 404, msgspec.json.encode(body | {"model": "no-such-model"})),
            ("wrong type", 400, msgspec.json.encode(body | {"max_tokens": "many"})),
            ("value out of range", 400, msgspec.json.encode(body | {"temperature": 3})),
            ("too many choices", 400, msgspec.json.encode(body | {"n": 100_000})),
            ("prompt too long", 400, _too_long(request, 6_000)),
            ("prompt far too long", 400, _too_long(request, 60_000)),
            ("body too large", 413, b" " * (5 * 2**20)),
        )
    )
    return Misbehaviour(Manner.ASKS_BADLY, request, detail=detail, raw_body=raw_body, status=status)


def _too_long(request: Request, num_words: int) -> bytes:
    text = "stone " * num_words
    content = {"messages": [{"role": "user", "content": text}]} if request.path == CHAT else {"prompt": text}
    return msgspec.json.encode(request.body | content)


MISBEHAVIOURS: tuple[Callable[[Random, str], Misbehaviour], ...] = (
    _leaves_mid_stream,
    _vanishes_before_the_answer,
    _reconnects,
    _half_sent_head,
    _half_sent_body,
    _stalled_body,
    _slow_reader,
    _bad_request,
    _bad_request,
)
