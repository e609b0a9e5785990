"""Integration tests start real processes. None may outlive its test, orphans of a killed parent included."""

import ctypes
import sys
from collections.abc import Iterator

import psutil
import pytest

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0
# Started by multiprocessing once for a whole process and ended with it.
SHARED_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def direct_children() -> set[psutil.Process]:
    return {child for child in psutil.Process().children() if not is_shared_helper(child)}


def is_shared_helper(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(helper in command for helper in SHARED_HELPERS)


@pytest.fixture(scope="session", autouse=True)
def adopt_orphans() -> None:
    """A process whose parent dies becomes our child instead of init's, so that a test sees what it left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@pytest.fixture(autouse=True)
def no_processes_left(adopt_orphans: None) -> Iterator[None]:
    """Fails a test whose child processes are still there a few seconds after it, and ends them for the next test.

    Servers of a wider scope were started before this and may stay; so may what they restart: it is not our child.
    """
    before = direct_children()
    yield
    _, left = psutil.wait_procs(direct_children() - before, timeout=GRACE_S)
    if not left:
        return
    story = [describe(process) for process in left]
    family = {member for process in left for member in [process, *descendants(process)]}
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=GRACE_S)
    pytest.fail(f"the test left {len(story)} process(es) behind: {'; '.join(story)}", pytrace=False)


def describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline()) or process.name()}"
    except psutil.Error:
        return str(process.pid)


def descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []
