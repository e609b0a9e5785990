"""How the engines of these tests run: so that what one gives does not depend on who else it serves, to the last bit."""

from __future__ import annotations

ENGINE_ARGUMENTS = (
    *("--deterministic", "--dtype", "float32", "--threads", "1"),
    *("--num-kv-blocks", "1024", "--max-num-seqs", "64"),
)
"""One thread: a second engine starts or computes beside the first one."""
