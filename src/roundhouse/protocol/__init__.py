"""What frontends and engines say to each other: values, frames and the machines of a link session.

Nothing here does I/O, reads a clock or starts a thread. `docs/protocol.md` tells the whole in prose.
"""
