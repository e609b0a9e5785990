import pytest

from roundhouse.runner.threads import cpu_limit, own_cgroup_path, parse_v1_quota, parse_v2_quota, read_cpu_limit


@pytest.mark.parametrize(
    ("num_cpus", "affinity", "quotas", "limit"),
    [(8, 8, [], 8), (8, 4, [], 4), (8, 8, [2.5], 2), (8, 8, [16.0, 3.0], 3), (8, 8, [0.25], 1)],
)
def test_the_smallest_limit_holds(num_cpus: int, affinity: int, quotas: list[float], limit: int) -> None:
    assert cpu_limit(num_cpus=num_cpus, affinity=affinity, quotas=quotas) == limit


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("200000 100000\n", 2.0),
        ("150000 100000", 1.5),
        ("max 100000\n", None),
        ("", None),
        ("1 0", None),
        ("x y", None),
    ],
)
def test_cgroup_v2(text: str, quota: float | None) -> None:
    assert parse_v2_quota(text) == quota


@pytest.mark.parametrize(
    ("quota_us", "period_us", "quota"), [("50000\n", "100000\n", 0.5), ("-1\n", "100000\n", None), ("", "", None)]
)
def test_cgroup_v1(quota_us: str, period_us: str, quota: float | None) -> None:
    assert parse_v1_quota(quota_us, period_us) == quota


def test_the_path_of_the_own_group() -> None:
    text = "12:cpu,cpuacct:/kubepods/pod1\n3:memory:/other\n0::/system.slice/a.service\n"
    assert own_cgroup_path(text, "") == "system.slice/a.service"
    assert own_cgroup_path(text, "cpu") == "kubepods/pod1"
    assert own_cgroup_path(text, "pids") == ""


def test_this_process_may_use_at_least_one_cpu() -> None:
    assert read_cpu_limit() >= 1
