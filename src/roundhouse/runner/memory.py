"""How much memory is free for KV blocks, on the device or within this process's own limit."""

from __future__ import annotations

from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP_V2 = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current"))
CGROUP_V1 = (
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_in_meminfo(meminfo: str) -> int:
    """Bytes of MemAvailable in the text of /proc/meminfo."""
    line = next(line for line in meminfo.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def available_in_cgroup(limit: str, usage: str) -> int | None:
    """Bytes left under a cgroup's limit; None without one ("max")."""
    if not (limit.strip().isdigit() and usage.strip().isdigit()):
        return None
    return max(0, int(limit) - int(usage))


def read_available_bytes(device: torch.device) -> int:
    """Of the device; for the CPU the smaller of what the machine and the container have left."""
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        return free_bytes
    left = [available_in_meminfo(MEMINFO.read_text())]
    for limit, usage in (CGROUP_V2, CGROUP_V1):
        try:
            in_cgroup = available_in_cgroup(limit.read_text(), usage.read_text())
        except OSError:
            continue
        if in_cgroup is not None:
            left.append(in_cgroup)
    return min(left)
