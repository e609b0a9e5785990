"""The grammars of the runner's rows. A row without one costs nothing.

A matcher stands behind the last output of its row. A row that is new with outputs, because its request was preempted or
comes from another engine, has it consume them first: its state follows from the tokens and from nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from llguidance import LLMatcher

from roundhouse.grammar.compiler import GrammarCompiler
from roundhouse.protocol.errors import EngineGenerateError, InvalidRequest
from roundhouse.scheduler.step import NewRequest

NOT_OF_THE_GRAMMAR = "the tokens so far are not of the request's grammar"
GRAMMAR_FAILED = "the request's grammar became too complex to follow"


@dataclass(frozen=True, slots=True)
class Masks:
    """Of the rows that sample in a step and have a grammar.

    forbidden: by row, which tokens may not come: bool [vocab_size]. at_end: rows whose grammar lets only the end come.
    failed: rows whose grammar cannot be followed any more.
    """

    forbidden: dict[int, torch.Tensor]
    at_end: set[int]
    failed: list[int]


NO_MASKS = Masks({}, set(), [])


class GuidedRows:
    def __init__(self, compiler: GrammarCompiler | None, *, vocab_size: int, device: torch.device) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._device = device
        self._matchers: dict[int, LLMatcher] = {}

    def __bool__(self) -> bool:
        """Whether any row has a grammar."""
        return bool(self._matchers)

    def add(self, row: int, request: NewRequest) -> None:
        """Raises `InvalidRequest` for what is no grammar, `EngineGenerateError` when the outputs so far break it."""
        params = request.sampling_params.structured_outputs
        if params is None:
            return
        if self._compiler is None:
            raise InvalidRequest("structured outputs are not served here", param="structured_outputs")
        matcher = self._compiler.compile(params)
        outputs = request.token_ids[request.num_prompt_tokens :]
        if outputs and not matcher.consume_tokens(outputs):
            raise EngineGenerateError(NOT_OF_THE_GRAMMAR)
        self._matchers[row] = matcher

    def remove(self, row: int) -> None:
        self._matchers.pop(row, None)

    def compute_masks(self, rows: list[int]) -> Masks:
        masks = Masks({}, set(), [])
        for row in rows:
            matcher = self._matchers.get(row)
            if matcher is None:
                continue
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            # A matcher that gave up allows the end alone, as if its grammar had ended here.
            if matcher.is_error():
                masks.failed.append(row)
                continue
            allowed = np.unpackbits(bits, count=self._vocab_size, bitorder="little")
            masks.forbidden[row] = torch.from_numpy(allowed == 0).to(self._device)
            if matcher.is_stopped():
                masks.at_end.add(row)
        return masks

    def append_tokens(self, rows: list[int], token_ids: list[int]) -> list[int]:
        """Moves the matchers on; returns the rows that an end of sequence ended."""
        ended: list[int] = []
        for row, token_id in zip(rows, token_ids, strict=True):
            matcher = self._matchers.get(row)
            if matcher is None:
                continue
            matcher.consume_token(token_id)  # what it cannot take fails the row in the next step
            if self._compiler is not None and token_id in self._compiler.stop_token_ids:
                ended.append(row)
        return ended
