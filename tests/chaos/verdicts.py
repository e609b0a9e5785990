"""Whether one stream of a chaos run came through: what the client got against the undisturbed answer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.chaos.transcript import Answer

MAX_SHIFT = 8
SHIFT_WINDOW = 6
"""So many tokens in a row that are right but for their place mean that some before them are missing or came twice."""

MAX_EXAMPLES = 30


class Outcome(StrEnum):
    EXACT = "exact"
    DIVERGED = "another token than the undisturbed run gave"
    """Every token is there once, as its number and the usage show."""
    WRONG_TOKENS = "tokens lost or doubled"
    LOST = "stream lost"
    CUT = "cut by its frontend's restart"


WRONG = frozenset({Outcome.DIVERGED, Outcome.WRONG_TOKENS, Outcome.LOST})


@dataclass(frozen=True, slots=True)
class Verdict:
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """A stream that did not come through exactly. at_s: of its end."""

    at_s: float
    name: str
    verdict: Verdict


@dataclass(slots=True)
class Tally:
    """examples: the first `MAX_EXAMPLES` of each outcome that is not the best one. num_tokens: of exact streams."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    examples: list[Example] = field(default_factory=list)
    num_tokens: int = 0
    longest_gap_s: float = 0.0

    def count(self, at_s: float, name: str, verdict: Verdict, num_tokens: int, longest_gap_s: float) -> None:
        self.outcomes[verdict.outcome] += 1
        if verdict.outcome is Outcome.EXACT:
            self.num_tokens += num_tokens
            self.longest_gap_s = max(self.longest_gap_s, longest_gap_s)
        if verdict.outcome is not Outcome.EXACT and self.outcomes[verdict.outcome] <= MAX_EXAMPLES:
            self.examples.append(Example(round(at_s, 1), name, verdict))


def judge(got: Answer, expected: Answer) -> Verdict:
    """Of an answer with one choice that ends by its length."""
    if not got.is_whole or got.usage is None or not got.choices:
        return Verdict(Outcome.LOST, f"after {got.num_tokens} tokens: {got.error or 'the stream ended'}")
    ours, wanted = got.choices[0], expected.choices[0]
    assert expected.usage is not None
    counts = (len(ours.token_ids), got.usage["completion_tokens"], got.usage["prompt_tokens"])
    due = (len(wanted.token_ids), expected.usage["completion_tokens"], expected.usage["prompt_tokens"])
    if counts != due or ours.finish_reason != wanted.finish_reason:
        story = f"tokens, completion and prompt tokens of the usage, end: {counts}, {ours.finish_reason}; due {due}"
        return Verdict(Outcome.WRONG_TOKENS, story)
    if ours.token_ids == wanted.token_ids:
        if ours.text == wanted.text:
            return Verdict(Outcome.EXACT)
        return Verdict(Outcome.WRONG_TOKENS, f"right token ids, wrong text: {ours.text!r}; due {wanted.text!r}")
    place = next(i for i, pair in enumerate(zip(ours.token_ids, wanted.token_ids, strict=True)) if len(set(pair)) > 1)
    shift = shift_from(ours.token_ids, wanted.token_ids, place)
    if shift:
        return Verdict(Outcome.WRONG_TOKENS, f"{abs(shift)} {'lost' if shift > 0 else 'doubled'} at {place}")
    return Verdict(Outcome.DIVERGED, f"at {place}: {ours.token_ids[place]} instead of {wanted.token_ids[place]}")


def shift_from(ours: Sequence[int], wanted: Sequence[int], place: int) -> int:
    """By how many tokens `ours` is ahead of `wanted` from `place` on: positive when some are missing; 0 for not."""
    window = list(ours[place : place + SHIFT_WINDOW])
    if len(window) < SHIFT_WINDOW:
        return 0
    for distance in range(1, MAX_SHIFT + 1):
        for shift in (distance, -distance):
            start = place + shift
            if start >= 0 and list(wanted[start : start + SHIFT_WINDOW]) == window:
                return shift
    return 0
