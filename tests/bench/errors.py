"""`BenchError`: a measurement that could not be made, in one sentence for the table."""

from __future__ import annotations


class BenchError(Exception):
    """Ends the measurement it was raised in; the others go on."""
