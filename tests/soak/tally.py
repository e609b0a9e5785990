"""What became of every request that a soak sent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MAX_EXAMPLES = 30


class Outcome:
    """AS_MEANT: the whole answer for a client that behaves, the right refusal or a departure for one that does not.
    CUT: the load ended first."""

    AS_MEANT = "as meant"
    CUT = "cut at the end"
    WRONG = "wrong"


class Unexpected(Exception):
    """The server did not keep its side; the message says how."""


@dataclass(frozen=True, slots=True)
class Failure:
    kind: str
    request_id: str
    at_s: float
    what: str


@dataclass(slots=True)
class Tally:
    """outcomes: by (kind, outcome). failures: the first MAX_EXAMPLES. num_tokens: by the usage of whole answers."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    num_tokens: int = 0

    def count(self, kind: str, outcome: str) -> None:
        self.outcomes[kind, outcome] += 1

    def fail(self, failure: Failure) -> None:
        self.count(failure.kind, Outcome.WRONG)
        if len(self.failures) < MAX_EXAMPLES:
            self.failures.append(failure)

    def total(self, outcome: str | None = None) -> int:
        return sum(count for (_, name), count in self.outcomes.items() if outcome in (None, name))

    def kinds(self) -> list[str]:
        """In alphabetical order."""
        return sorted({kind for kind, _ in self.outcomes})
