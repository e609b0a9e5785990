"""Which exceptions are faults: something broke in one call, and nobody asked for an end.

Libraries that are written in Rust, as the tokenizer's is, fail by a panic where they have a bug. It arrives as a
`PanicException`, a BaseException that cannot be imported, so that no `except Exception` meets it.
"""

from __future__ import annotations

from roundhouse.model_store.errors import is_library_fault


def is_fault(error: BaseException) -> bool:
    """False for a cancellation, an interrupt and the like: they are to go on."""
    return is_library_fault(error)
