"""`GrammarCompiler`: `StructuredOutputsParams` → a matcher at its start. The same in a frontend, which only asks if
there is one, and in an engine, which moves it on.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from roundhouse.grammar.deep_stack import call_with_deep_stack
from roundhouse.grammar.source import grammar_source, invalid_grammar
from roundhouse.protocol.errors import InvalidRequest
from roundhouse.protocol.sampling import StructuredOutputsParams

logger = logging.getLogger(__name__)

MAX_COMPILED = 32
MAX_COMPILED_BYTES = 256 * 2**10
"""Of the sources of compiled grammars that are kept; a large one takes some hundred times its source in memory."""

MAX_ERROR_CHARS = 300


def parser_limits() -> LLParserLimits:
    """A step of a hostile grammar then takes some 10 ms, and to compile one a few tenths of a second."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=20_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


class GrammarCompiler:
    """Keeps what it compiled last. Thread-safe. `load_vocabulary` is called once, when the first grammar comes."""

    def __init__(self, load_vocabulary: Callable[[], LLTokenizer]) -> None:
        self._load_vocabulary = load_vocabulary
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    @property
    def stop_token_ids(self) -> list[int]:
        """What a grammar lets come where it may end. Nothing before the first grammar was compiled."""
        return self._vocabulary.eos_tokens if self._vocabulary is not None else []

    def compile(self, params: StructuredOutputsParams) -> LLMatcher:
        """A matcher of the caller's own, at its start.

        Raises `InvalidRequest`, and what loading the vocabulary raises.
        """
        source = grammar_source(params)
        with self._lock:
            known = self._compiled.get(source)
            if known is None:
                known = call_with_deep_stack(lambda: self._compile(source))
                self._keep(source, known)
            self._compiled.move_to_end(source)
            return known.deep_copy()

    def _compile(self, source: str) -> LLMatcher:
        if self._vocabulary is None:
            self._vocabulary = self._load_vocabulary()
        try:
            matcher = LLMatcher(self._vocabulary, source, log_level=0, limits=parser_limits())
            _raise_error(matcher)
            # Some grammars are found too large only when they are used.
            trial = matcher.deep_copy()
            trial.compute_bitmask()
            _raise_error(trial)
        except InvalidRequest:
            raise
        except BaseException as error:
            # A panic of the library is no Exception.
            logger.exception("llguidance failed on a grammar of %d bytes", len(source))
            raise invalid_grammar("the grammar cannot be compiled") from error
        return matcher

    def _keep(self, source: str, matcher: LLMatcher) -> None:
        self._compiled[source] = matcher
        self._num_bytes += len(source)
        while len(self._compiled) > 1 and (len(self._compiled) > MAX_COMPILED or self._num_bytes > MAX_COMPILED_BYTES):
            oldest, _ = self._compiled.popitem(last=False)
            self._num_bytes -= len(oldest)


def _raise_error(matcher: LLMatcher) -> None:
    if matcher.is_error():
        text = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
        raise invalid_grammar(f"the grammar cannot be compiled: {text[:MAX_ERROR_CHARS]}")
