"""How many files and connections a process that serves clients may have open."""

from __future__ import annotations

import logging
import resource

ENOUGH = 2**16
"""Descriptors: four times what the mesh may take (`limits.MAX_MESH_CONNECTIONS`), and what HTTP may."""

FEW = 2**13

logger = logging.getLogger(__name__)


def raise_descriptor_limit() -> int:
    """To `ENOUGH`, or as far as the process may itself. The usual soft limit is 1024: clients alone can take
    that, and a process without descriptors accepts nobody and opens nothing. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < FEW:
        logger.warning("this process may have %d files and connections open, which is few (ulimit -n)", soft)
    return soft
