"""What the explorer looks for."""

from __future__ import annotations


class Violation(AssertionError):
    """A rule of the mesh is broken."""


def expect(holds: bool, rule: str) -> None:
    """Raises `Violation`."""
    if not holds:
        raise Violation(rule)
