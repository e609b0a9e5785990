"""Integration tests start real processes. None may outlive its test, orphans of a killed parent included."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0
# Started by multiprocessing once for a whole process and ended with it.
SHARED_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@pytest.fixture(scope="session", autouse=True)
def no_processes_left_at_all() -> Iterator[None]:
    """What servers of a wider scope leave behind fails the last test.

    A process whose parent dies becomes our child instead of init's, so that a test sees its orphans too.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with none_left_behind("the tests"):
        yield


@pytest.fixture(autouse=True)
def no_processes_left(no_processes_left_at_all: None) -> Iterator[None]:
    """Fails a test whose child processes are still there a few seconds after it.

    Servers of a wider scope were started before this and may stay; so may what they restart: it is not our child.
    """
    with none_left_behind("the test"):
        yield


@contextmanager
def none_left_behind(who: str) -> Iterator[None]:
    """Fails when new children outlive the block, and ends them all the same: the next test starts clean."""
    before = direct_children()
    yield
    _, left = psutil.wait_procs(direct_children() - before, timeout=GRACE_S)
    if not left:
        return
    story = "; ".join(describe(process) for process in left)
    family = {member for process in left for member in [process, *descendants(process)]}
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=GRACE_S)
    pytest.fail(f"{who} left {len(left)} process(es) behind: {story}", pytrace=False)


def direct_children() -> set[psutil.Process]:
    return {child for child in psutil.Process().children() if not is_shared_helper(child)}


def is_shared_helper(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return any(helper in command for helper in SHARED_HELPERS)


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
