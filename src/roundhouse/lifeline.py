"""A child process that ends with its parent, however that ends: no engine and no converter is left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent_pid: int) -> None:
    """Kills this process when the parent is gone, also when that was killed outright. Linux only.

    SIGKILL, since a stopped process would not hear of anything else; and nobody is left who could wait for its end.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # gone before we asked
        sys.exit(0)
