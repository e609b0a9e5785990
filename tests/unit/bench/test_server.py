from __future__ import annotations

import pytest

from tests.bench.server import BenchServer, peak_rss_bytes, role_of


def test_a_body_is_greedy_and_streams_unless_it_says_otherwise() -> None:
    server = BenchServer("us", "bf16", ["serve"], {}, "a-model", 8000, {"ignore_eos": True})
    assert server.body([1, 2], 7) == {
        "model": "a-model",
        "prompt": [1, 2],
        "max_tokens": 7,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert server.body([1], 1, temperature=1.0, ignore_eos=False)["temperature"] == 1.0
    assert server.body([1], 1, ignore_eos=False)["ignore_eos"] is False


@pytest.mark.parametrize(
    ("command", "is_root", "role"),
    [
        (["python", "-m", "roundhouse.cli.main", "serve", "engine-model"], True, "frontend"),
        (["python", "-m", "roundhouse.cli.main", "engine", "model"], False, "engine"),
        (["VLLM::EngineCore"], False, "engine"),
        (["VLLM::Worker"], False, "engine"),
        (["python", "-c", "from multiprocessing.resource_tracker import main"], False, "other"),
        ([], False, "other"),
    ],
)
def test_the_role_of_a_process(command: list[str], is_root: bool, role: str) -> None:
    assert role_of(command, is_root=is_root) == role


def test_peak_memory_of_a_process() -> None:
    assert peak_rss_bytes("Name:\tpython\nVmPeak:\t  900 kB\nVmHWM:\t  512 kB\nVmRSS:\t  100 kB\n") == 512 * 1024
    assert peak_rss_bytes("Name:\tzombie\nState:\tZ (zombie)\n") == 0
