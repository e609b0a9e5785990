"""The text of one choice as it grows: what may be shown of it, which tokens that covers, which stop string ended it.

While stop strings are looked for, characters that may turn out to be part of one are held back, and their tokens with
them: neither a text nor a logprob ever tells a client about a token that the stop string takes away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from roundhouse.frontend.stop_strings import StopMatch, StopScanner
from roundhouse.frontend.token_stream import TokenStream
from roundhouse.model_store.tokenizer import Tokenizer
from roundhouse.protocol.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Shown:
    """What one update adds to the choice: `text`, and its next `num_tokens` tokens.

    stop: the stop string that ends the choice here; tokens not shown by now never are.
    """

    text: str
    num_tokens: int
    stop: str | None = None


class Detokenizer:
    """For a request with `params.detokenize`. An update costs O(its tokens), whatever came before."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._stream = TokenStream(
            tokenizer,
            prompt_token_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        self._shows_stop_token = params.include_stop_str_in_output
        self._hold_back = HoldBack(params) if params.stop else None

    def update(self, token_ids: Sequence[int], *, ends_with_stop_token: bool = False, finished: bool = False) -> Shown:
        """Appends new tokens. `ends_with_stop_token`: the last one ended the choice and is no part of its text."""
        step = self._stream.step
        if ends_with_stop_token and not self._shows_stop_token:
            pieces = [*map(step, token_ids[:-1]), ""]
        else:
            pieces = list(map(step, token_ids))
        rest = self._stream.flush() if finished else ""
        if self._hold_back is not None:
            return self._hold_back.update(pieces, rest, finished=finished)
        return Shown("".join(pieces) + rest, len(token_ids))


class HoldBack:
    """The characters and tokens that wait until no stop string can take them away.

    A stop string that is itself part of the output takes nothing away, and nothing waits. `min_tokens` tokens are never
    searched: a match begins behind them.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._scanner = StopScanner(params.stop)
        self._include_stop = params.include_stop_str_in_output
        self._num_held_chars = 0 if self._include_stop else self._scanner.max_overlap
        self._num_unsearched_tokens = params.min_tokens
        self._text = ""  # not shown yet
        self._ends: deque[int] = deque()  # of the tokens not shown yet: the place behind each one's text
        self._shown_end = 0  # the place behind the last shown token's text
        self._num_shown_chars = 0
        self._num_chars = 0

    def update(self, pieces: list[str], rest: str, *, finished: bool) -> Shown:
        """`pieces[i]` is the text of the i-th new token, `rest` what earlier tokens still had."""
        for piece in pieces:
            self._num_chars += len(piece)
            self._ends.append(self._num_chars)
        self._num_chars += len(rest)
        if self._ends:
            self._ends[-1] = self._num_chars
        num_unsearched = min(self._num_unsearched_tokens, len(pieces))
        self._num_unsearched_tokens -= num_unsearched
        unsearched, searched = "".join(pieces[:num_unsearched]), "".join(pieces[num_unsearched:]) + rest
        self._text += unsearched + searched
        if unsearched:
            self._scanner.skip(unsearched)
        match = self._scanner.scan(searched) if searched else None
        if match is not None:
            return self._cut(match)
        if finished:
            return Shown(self._text, len(self._ends))
        return self._show(self._num_chars - self._num_held_chars)

    def _show(self, end: int) -> Shown:
        """The text before the place `end`, and the tokens that are over by then."""
        num_new_chars = max(0, end - self._num_shown_chars)
        text, self._text = self._text[:num_new_chars], self._text[num_new_chars:]
        self._num_shown_chars += num_new_chars
        num_tokens = 0
        while self._ends and self._ends[0] <= self._num_shown_chars:
            if self._shown_end == self._ends[0] == self._num_shown_chars:
                break  # a token without text begins a character, and belongs to what comes
            self._shown_end = self._ends.popleft()
            num_tokens += 1
        return Shown(text, num_tokens)

    def _cut(self, match: StopMatch) -> Shown:
        """The text before the cut, and each token with a character in it."""
        cut = match.end if self._include_stop else match.start
        text = self._text[: cut - self._num_shown_chars]
        starts = [self._shown_end, *self._ends][:-1]
        return Shown(text, sum(start < cut for start in starts), match.stop)
