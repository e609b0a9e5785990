"""How many threads to compute with: the CPUs that this process may really use. More than that only fight each other."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
V1_CPU_ROOTS = (CGROUP_ROOT / "cpu", CGROUP_ROOT / "cpu,cpuacct")


def cpu_limit(*, num_cpus: int, affinity: int, quotas: list[float]) -> int:
    """Whole CPUs, at least 1. A fraction of a CPU is left to the process's other threads: they have work too."""
    return max(1, int(min([num_cpus, affinity, *quotas])))


def parse_v2_quota(cpu_max: str) -> float | None:
    """CPUs allowed by a cgroup v2 `cpu.max` ("200000 100000"); None without a limit ("max 100000")."""
    fields = cpu_max.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[1]) == 0:
        return None
    return int(fields[0]) / int(fields[1])


def parse_v1_quota(quota_us: str, period_us: str) -> float | None:
    """CPUs allowed by cgroup v1 `cpu.cfs_quota_us` and `cpu.cfs_period_us`; None without a limit (-1)."""
    return parse_v2_quota(f"{quota_us.strip()} {period_us.strip()}")


def own_cgroup_path(proc_self_cgroup: str, controller: str) -> str:
    """This process's path below the mount of `controller` ("" is cgroup v2) in the text of /proc/self/cgroup."""
    for line in proc_self_cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.strip("/")
    return ""


def read_cpu_limit() -> int:
    """The CPU limit of this process. A limit of any parent group holds too, so every level up to the root is read."""
    return cpu_limit(num_cpus=os.cpu_count() or 1, affinity=len(os.sched_getaffinity(0)), quotas=_read_quotas())


def _read_quotas() -> list[float]:
    groups = _read(Path("/proc/self/cgroup")) or ""
    quotas = [
        parse_v2_quota(_read(level / "cpu.max") or "") for level in _levels(CGROUP_ROOT, own_cgroup_path(groups, ""))
    ]
    for root in V1_CPU_ROOTS:
        for level in _levels(root, own_cgroup_path(groups, "cpu")):
            quota, period = _read(level / "cpu.cfs_quota_us"), _read(level / "cpu.cfs_period_us")
            quotas.append(parse_v1_quota(quota or "", period or ""))
    return [quota for quota in quotas if quota is not None]


def _levels(root: Path, path: str) -> list[Path]:
    own = root / path
    return [own, *(parent for parent in own.parents if parent == root or root in parent.parents)]


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
