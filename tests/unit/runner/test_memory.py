from __future__ import annotations

from roundhouse.runner.memory import available_in_cgroup, available_in_meminfo


def test_meminfo() -> None:
    assert available_in_meminfo("MemTotal:  100 kB\nMemFree: 7 kB\nMemAvailable:   12 kB\n") == 12 * 1024


def test_a_cgroup_leaves_what_is_under_its_limit() -> None:
    assert available_in_cgroup("1000\n", "400\n") == 600
    assert available_in_cgroup("1000", "1400") == 0
    assert available_in_cgroup("max\n", "400\n") is None
