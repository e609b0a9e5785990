"""`roundhouse keys` with the frontend and engine commands: made, rotated and revoked while a client reads a stream."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.serve_process import run_command
from tests.support.tiny_chat_model import write_tiny_chat_model

NUM_TOKENS = 100


def keys(*arguments: object) -> str:
    done = run_command("keys", *map(str, arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


def server_keys(cluster: Cluster) -> set[tuple[object, object]]:
    return {(name, engine["server_key"]) for name, engine in cluster.frontends[0].engines().items()}


@pytest.mark.timeout(300)
def test_keys_from_the_first_to_the_last(tmp_path: Path, smollm2_folder: Path) -> None:
    model, folder = write_tiny_chat_model(tmp_path / "tiny", smollm2_folder), tmp_path / "keys"
    keys("new", folder, "--engines", "e-0,e-1")
    with Cluster(tmp_path, str(model), keys=folder) as cluster:
        frontend = cluster.frontends[0]
        assert server_keys(cluster) == {("e-0", 1), ("e-1", 1)}
        body = {
            "model": "m",
            "prompt": "Once",
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with httpx.stream("POST", f"{frontend.url}/v1/completions", json=body, timeout=120) as response:
            lines = response.iter_lines()
            next(lines)
            keys("rotate-server", folder)
            eventually(lambda: server_keys(cluster) == {("e-0", 2), ("e-1", 2)}, "engines go over", frontend.log)
            keys("retire", folder)
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert events[-1]["usage"]["completion_tokens"] == NUM_TOKENS
        assert not any("error" in event for event in events)
        keys("revoke", folder, "e-1")
        eventually(lambda: server_keys(cluster) == {("e-0", 2)}, "e-1 is locked out", frontend.log)
        eventually(lambda: "is not allowed there" in cluster.engine("e-1").log.read_text(), "it says so", frontend.log)
        metrics = frontend.metrics()
        assert metrics['roundhouse_mesh_refused_peers_total{,reason="key"}'] > 0
        assert metrics["roundhouse_mesh_lost_requests_total"] == 0
        assert metrics["roundhouse_mesh_key_reload_failures_total"] == 0
