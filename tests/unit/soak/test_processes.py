from __future__ import annotations

import os

import pytest

from tests.soak.processes import name_of, parse_mib, sample_tree

ROLLUP = """\
55b8c04e6000-7ffc5aea7000 ---p 00000000 00:00 0                          [rollup]
Rss:              109568 kB
Pss:               96256 kB
Pss_Dirty:         78988 kB
Private_Clean:      1024 kB
Private_Dirty:     77824 kB
"""


def test_sizes_in_mib() -> None:
    assert parse_mib(ROLLUP) == {
        "Rss": 107.0,
        "Pss": 94.0,
        "Pss_Dirty": 77.13671875,
        "Private_Clean": 1.0,
        "Private_Dirty": 76.0,
    }
    assert parse_mib("Name:\tpython\nVmRSS:\t  2048 kB\nThreads:\t3\n") == {"VmRSS": 2.0}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-m", "roundhouse.cli.main", "serve", "m"], "frontend"),
        (
            ["python", "-m", "roundhouse.cli.main", "engine", "m", "--identity", "local-1", "--parent-pid", "3"],
            "local-1",
        ),
        (["/bin/sleep", "3"], "sleep"),
        ([], "?"),
    ],
)
def test_names(command: list[str], name: str) -> None:
    assert name_of(command) == name


def test_this_process_is_in_its_own_tree() -> None:
    sample = sample_tree(os.getpid(), 4.0)[0]
    assert (sample.at_s, sample.pid) == (4.0, os.getpid())
    assert sample.anonymous_mib + sample.file_mib + sample.shared_mib == pytest.approx(sample.rss_mib, rel=0.05)
    assert sample.pss_mib >= sample.uss_mib > 1
    assert sample.num_fds > 2
    assert sample.num_threads >= 1
