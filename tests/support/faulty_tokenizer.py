"""Ways in which a tokenizer can fail that are no refusal of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tokenizers import Tokenizer, models


class Broken(Exception):
    """What no code of ours raises."""


def crash() -> NoReturn:
    raise Broken("injected")


def panic() -> NoReturn:
    """A true panic of the library: a BaseException, not an Exception."""
    letters = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    letters.encode("aa").truncate(1, stride=1)
    raise AssertionError("the library does not panic here any more")


FAULTS: dict[str, Callable[[], NoReturn]] = {"crash": crash, "panic": panic}


class BackendThatFails:
    """In the place of a tokenizer's backend; `fault` for whatever it is asked."""

    def __init__(self, fault: Callable[[], NoReturn]) -> None:
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_options: self._fault()
