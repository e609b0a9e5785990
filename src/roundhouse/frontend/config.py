"""Settings of AsyncLLM and its processors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    """max_model_len: None takes the model's own; engines that hold less lower it further.

    output_slice: outputs of one message that are handled before other tasks of the event loop get a turn.
    tokenize_in_thread_above_chars: longer prompts are tokenized off the event loop; a shorter one takes under 0.1 ms,
    which is less than the way to a thread and back costs the others.
    grammar_check_s: how long a grammar may take to compile, its wait for others included.
    pooling_tasks: what `encode` may ask of the engines.
    """

    max_model_len: int | None = None
    output_slice: int = 128
    tokenize_in_thread_above_chars: int = 2048
    tokenize_threads: int = 2
    grammar_check_s: float = 20.0
    pooling_tasks: frozenset[str] = frozenset()
