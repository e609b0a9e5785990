"""What rendering a template may cost: it looks at the clock in each turn of a loop and at each call, what it writes is
counted, and numbers and texts are kept from exploding in one operation.

A sandbox keeps a template from Python, not from looping: three nested `range(100000)` take for ever. Threads cannot be
ended, so the template is made to look at the clock itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, ClassVar

import jinja2
import jinja2.exceptions
import jinja2.nodes
import jinja2.sandbox

from roundhouse.clock import monotonic

MAX_RENDER_S = 5.0
MAX_RENDERED_CHARS = 32 * 2**20
MAX_FACTOR = 2**20
"""Of a text or list that is repeated, and of an exponent's number of bits in the result."""

_COUNTED = "_each_turn_looks_at_the_clock"
_deadline: ContextVar[float] = ContextVar("deadline of a template", default=float("inf"))


class TooExpensive(jinja2.exceptions.TemplateRuntimeError):
    """The template took too long or wrote too much."""


def look_at_the_clock() -> None:
    """Raises `TooExpensive`."""
    if monotonic() > _deadline.get():
        raise TooExpensive("it takes too long")


def render_within(template: jinja2.Template, values: dict[str, Any], max_s: float) -> str:
    """Raises `TooExpensive`, or what `template.render` raises."""
    token = _deadline.set(monotonic() + max_s)
    try:
        parts: list[str] = []
        num_chars = 0
        for part in template.generate(values):
            num_chars += len(part)
            if num_chars > MAX_RENDERED_CHARS:
                raise TooExpensive(f"it writes more than {MAX_RENDERED_CHARS} characters")
            parts.append(part)
        return "".join(parts)
    finally:
        _deadline.reset(token)


class BudgetedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Its templates look at the clock; without `render_within` there is no deadline."""

    intercepted_binops: ClassVar[frozenset[str]] = frozenset({"*", "**"})  # type: ignore[misc]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.filters[_COUNTED] = _counted
        # A page of filler text for designers, as long as it is asked to be.
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = jinja2.nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno)
        return tree

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        look_at_the_clock()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        look_at_the_clock()
        numbers = [value for value in (left, right) if isinstance(value, int)]
        if operator == "**":
            is_large = len(numbers) == 2 and left.bit_length() * abs(right) > MAX_FACTOR
        else:
            sizes = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
            is_large = bool(numbers and sizes) and numbers[0] * sizes[0] > MAX_FACTOR
        if is_large:
            raise TooExpensive(f"its {operator} makes too much")
        return super().call_binop(context, operator, left, right)


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        look_at_the_clock()
        yield value
