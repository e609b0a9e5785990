"""What one client got: the events of a stream, or one body, as an `Answer` that can be compared. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode


@dataclass(slots=True)
class Choice:
    """logprobs: the fields of all parts as they came, one after the other."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(slots=True)
class Answer:
    """error: of an error event, or of a body with a status of its own. is_whole: it came to its proper end."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    num_comments: int = 0
    is_whole: bool = False

    @property
    def num_tokens(self) -> int:
        """Of all choices."""
        return sum(len(choice.token_ids) for choice in self.choices.values())

    def feed_line(self, line: str) -> None:
        """A line of an event stream. Raises `ValueError` for one that no stream of ours has."""
        if line.startswith(":"):
            self.num_comments += 1
        elif line == "data: [DONE]":
            self.is_whole = self.error is None
        elif line:
            if not line.startswith("data: ") or self.is_whole:
                raise ValueError(f"a line out of place: {line!r}")
            self._take(_decode(line.removeprefix("data: ")), "delta")

    def feed_body(self, body: bytes) -> None:
        """An answer without a stream."""
        self._take(_decode(body), "message")
        self.is_whole = self.error is None

    def _take(self, part: dict[str, Any], message_key: str) -> None:
        self.error = part.get("error") or self.error
        self.usage = part.get("usage") or self.usage
        for shaped in part.get("choices", ()):
            choice = self.choices.setdefault(shaped["index"], Choice())
            text = shaped["text"] if "text" in shaped else shaped[message_key].get("content")
            choice.text += text or ""
            choice.token_ids += shaped.get("token_ids") or []
            choice.finish_reason = shaped["finish_reason"] or choice.finish_reason
            logprobs = shaped.get("logprobs")
            if logprobs:
                # A chat has one list of objects, a completion several lists, with an offset into the text that counts
                # from its start: all of them are of one entry for each token.
                columns = logprobs if "content" not in logprobs else {"content": logprobs["content"]}
                choice.logprobs += [list(row) for row in zip(*columns.values(), strict=True)]


def difference(got: Answer, expected: Answer) -> str | None:
    """What the first thing is in which they differ, be it the last bit of a log probability; None for nothing.
    Comments, and how much of the prompt an engine had in its prefix cache, are no part of it."""
    if not got.is_whole:
        return f"not whole: {got.error}, {got.num_tokens} tokens"
    if _counts(got) != _counts(expected):
        return f"usage {got.usage} instead of {expected.usage}"
    if got.choices.keys() != expected.choices.keys():
        return f"choices {sorted(got.choices)} instead of {sorted(expected.choices)}"
    for index, wanted in expected.choices.items():
        choice = got.choices[index]
        for name in ("token_ids", "text", "finish_reason", "logprobs"):
            ours, theirs = getattr(choice, name), getattr(wanted, name)
            if ours != theirs:
                return f"choice {index}: {name} {_from_first_difference(ours, theirs)}"
    return None


def _counts(answer: Answer) -> dict[str, Any]:
    return {name: count for name, count in (answer.usage or {}).items() if name != "prompt_tokens_details"}


def _from_first_difference(ours: Any, theirs: Any) -> str:
    if ours is None or theirs is None or (isinstance(ours, str) and len(ours) < 12):
        return f"{ours!r} instead of {theirs!r}"
    length = min(len(ours), len(theirs))
    place = next((i for i in range(length) if ours[i] != theirs[i]), length)
    return f"from {place} of {len(theirs)} on: {ours[place : place + 12]!r} instead of {theirs[place : place + 12]!r}"
