"""Seeded traces of many people who talk to a model: shared system prompts, growing histories, time to think."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from roundhouse.protocol.block_hash import BlockHash, extend_chain, root_hash

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Turn:
    """One request of a conversation, with all that was said before in its prompt.

    think_s: from the end of the turn before, or from the start of the trace. door: a random number that picks the
    frontend.
    """

    request_id: str
    prompt: list[int]
    outputs: list[int]
    think_s: float
    door: int

    @cached_property
    def hashes(self) -> list[BlockHash]:
        """Of the blocks that prompt and outputs fill."""
        hashes: list[BlockHash] = []
        extend_chain(hashes, root_hash(), self.prompt + self.outputs, BLOCK_SIZE)
        return hashes


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """system_tokens: one system prompt of each length. start_rate: conversations a second."""

    system_tokens: Sequence[int] = (120, 400, 400, 1000)
    num_conversations: int = 400
    start_rate: float = 6.0
    mean_turns: int = 5
    think_s: float = 5.0
    user_tokens: tuple[int, int] = (10, 150)
    output_tokens: tuple[int, int] = (30, 200)


def make_trace(seed: int, mixture: Mixture) -> list[list[Turn]]:
    """The turns of each conversation, in their order."""
    rng = random.Random(seed)
    systems = [_tokens(rng, length) for length in mixture.system_tokens]
    starts_at = 0.0
    trace: list[list[Turn]] = []
    for number in range(mixture.num_conversations):
        starts_at += rng.expovariate(mixture.start_rate)
        history = list(rng.choice(systems))
        turns: list[Turn] = []
        for place in range(rng.randint(1, 2 * mixture.mean_turns - 1)):
            prompt = history + _tokens(rng, rng.randint(*mixture.user_tokens))
            outputs = _tokens(rng, rng.randint(*mixture.output_tokens))
            think_s = rng.expovariate(1 / mixture.think_s) if place else starts_at
            turns.append(Turn(f"{number}-{place}", prompt, outputs, think_s, rng.getrandbits(30)))
            history = prompt + outputs
        trace.append(turns)
    return trace


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(50_000) for _ in range(count)]
