"""What the clients of a soak that behave ask for: requests of every kind, drawn from one seed. Pure.

Each constant stream has a generator of its own, made of the run's seed and its number, so that what a client does next
depends on nothing that happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
WORDS = ("river", "stone", "lantern", "copper", "market", "winter", "signal", "garden", "engine", "harbour", "letter")
FILLING_TOKENS = 1000
FIRST_PLAIN_TOKEN_ID, LAST_PLAIN_TOKEN_ID = 300, 20_000
SHARED_PREFIXES = tuple(
    f"You answer for the {place} of a small town. "
    + " ".join(f"Rule {i}: be brief about {WORDS[i % len(WORDS)]}." for i in range(24))
    for place in ("library", "railway", "museum")
)


@dataclass(frozen=True, slots=True)
class Request:
    """keeps_alive: the client sends its next request by the same connection."""

    kind: str
    path: str
    body: dict[str, Any]
    keeps_alive: bool = True

    @property
    def is_stream(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def num_choices(self) -> int:
        return self.body.get("n", 1)

    def encode(self) -> bytes:
        return msgspec.json.encode(self.body)


def filling(seed: int, model: str, num_tokens: int) -> list[Request]:
    """Prompts of so many tokens together, which no cache knows, for one token each."""
    random = Random(f"{seed}/filling")
    return [
        Request(
            "fills the pool",
            COMPLETIONS,
            {
                "model": model,
                "prompt": [random.randint(FIRST_PLAIN_TOKEN_ID, LAST_PLAIN_TOKEN_ID) for _ in range(FILLING_TOKENS)],
                "max_tokens": 1,
                "ignore_eos": True,
            },
        )
        for _ in range(-(-num_tokens // FILLING_TOKENS))
    ]


def crowd(seed: int, model: str, num_requests: int) -> list[Request]:
    """What a crowd sends that comes all at once: the largest steps that the mix of requests can lead to."""
    random = Random(f"{seed}/crowd")
    return [draw_request(random, model) for _ in range(num_requests)]


def requests(seed: int, stream: int, model: str) -> Iterator[Request]:
    """What the constant stream of that number sends, without end."""
    random = Random(f"{seed}/stream/{stream}")
    while True:
        yield draw_request(random, model)


def draw_request(random: Random, model: str) -> Request:
    kind = random.choice(list(FEATURES))
    path = random.choice((CHAT, COMPLETIONS))
    text = words(random, random.randint(4, 24))
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": random.randint(8, 64),
        "temperature": random.choice((0, 0.7, 1)),
    }
    if random.random() < 0.6:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    text = FEATURES[kind](random, path, body, text)
    body |= {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return Request(kind, path, body, keeps_alive=random.random() < 0.7)


def words(random: Random, count: int) -> str:
    """The text of a prompt."""
    return "Write about " + " ".join(random.choices(WORDS, k=count))


def _short(random: Random, path: str, body: dict[str, Any], text: str) -> str:
    return text


def _long(random: Random, path: str, body: dict[str, Any], text: str) -> str:
    """Up to some 500 tokens; above 2,048 characters the frontend tokenizes on a thread."""
    return words(random, random.randint(100, 400))


def _shared_prefix(random: Random, path: str, body: dict[str, Any], text: str) -> str:
    return f"{random.choice(SHARED_PREFIXES)} {text}"


def _choices(random: Random, path: str, body: dict[str, Any], text: str) -> str:
    body |= {"n": random.randint(2, 4), "max_tokens": random.randint(4, 24), "temperature": 1}
    return text


def _logprobs(random: Random, path: str, body: dict[str, Any], text: str) -> str:
    body |= {"logprobs": True, "top_logprobs": 3} if path == CHAT else {"logprobs": 3}
    return text


def _stop(random: Random, path: str, body: dict[str, Any], text: str) -> str:
    body |= {"stop": random.sample([" the", ".", ",", "\n", " of", "ing"], k=2)}
    return text


def _seed(random: Random, path: str, body: dict[str, Any], text: str) -> str:
    body |= {"seed": random.randrange(2**31), "temperature": 1, "top_p": 0.9, "top_k": 40}
    return text


def _penalties(random: Random, path: str, body: dict[str, Any], text: str) -> str:
    body |= {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"260": -5}}
    return text


FEATURES: dict[str, Callable[[Random, str, dict[str, Any], str], str]] = {
    "short prompt": _short,
    "long prompt": _long,
    "shared prefix": _shared_prefix,
    "n > 1": _choices,
    "logprobs": _logprobs,
    "stop strings": _stop,
    "seed": _seed,
    "penalties": _penalties,
}
