"""What a number means nothing without: the machine, its load, the versions and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

_DECIDING_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
"""What kernels are chosen by."""


def cpu_facts(cpuinfo: str) -> dict[str, Any]:
    """Model and instruction sets of a /proc/cpuinfo's first processor."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "cpu": fields.get("model name", platform.machine()),
        "instruction_sets": [flag for flag in _DECIDING_FLAGS if flag in flags],
    }


def machine_facts() -> dict[str, Any]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        **cpu_facts(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
    }


def load_average() -> list[float]:
    """Over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def commit_facts() -> dict[str, Any]:
    """The commit that is measured, and whether the working tree differs from it; None outside a checkout."""
    revision = _git("rev-parse", "HEAD")
    return {"revision": revision, "is_dirty": None if revision is None else bool(_git("status", "--porcelain"))}


def _git(*arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
