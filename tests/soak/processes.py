"""What the kernel says of every process of a server: memory, open files, threads, processor time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """name: `frontend`, or of an engine its identity. cpu_s: since its start.

    rss = anonymous (heap, stacks) + file (libraries, weights) + shared (the KV cache of an engine on CPU). pss: rss
    with every page divided among those that share it. uss: what it has alone.
    """

    at_s: float
    name: str
    pid: int
    rss_mib: float
    anonymous_mib: float
    file_mib: float
    shared_mib: float
    pss_mib: float
    uss_mib: float
    num_fds: int
    num_threads: int
    cpu_s: float


def name_of(command: Sequence[str]) -> str:
    """What a process of the tree is called here, by its command line."""
    if "--identity" in command:
        return command[command.index("--identity") + 1]
    return "frontend" if "serve" in command else Path(command[0]).name if command else "?"


def parse_mib(text: str) -> dict[str, float]:
    """The sizes in /proc/PID/status or /proc/PID/smaps_rollup, by name."""
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in text.splitlines() if line.endswith(" kB")}


def sample_tree(root_pid: int, at_s: float) -> list[ProcessSample]:
    """The root and all below it; a process that ends meanwhile is left out."""
    samples: list[ProcessSample] = []
    for process in [psutil.Process(root_pid), *psutil.Process(root_pid).children(recursive=True)]:
        folder = Path("/proc", str(process.pid))
        try:
            times = process.cpu_times()
            mib = parse_mib((folder / "status").read_text()) | parse_mib((folder / "smaps_rollup").read_text())
            samples.append(
                ProcessSample(
                    at_s,
                    name_of(process.cmdline()),
                    process.pid,
                    rss_mib=mib["VmRSS"],
                    anonymous_mib=mib["RssAnon"],
                    file_mib=mib["RssFile"],
                    shared_mib=mib["RssShmem"],
                    pss_mib=mib["Pss"],
                    uss_mib=mib["Private_Clean"] + mib["Private_Dirty"],
                    num_fds=len(os.listdir(folder / "fd")),
                    num_threads=len(os.listdir(folder / "task")),
                    cpu_s=times.user + times.system,
                )
            )
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue
    return samples
