from __future__ import annotations

import os
import subprocess
import sys


def spin_count(environment: dict[str, str]) -> str:
    """What libgomp gets to read when an engine's modules are imported."""
    code = "import os, roundhouse.runner.worker; print(os.environ['GOMP_SPINCOUNT'])"
    clean = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    return subprocess.run(
        [sys.executable, "-c", code], env={**clean, **environment}, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_torch_is_told_not_to_spin_for_long_unless_someone_knows_better() -> None:
    assert spin_count({}) == "6000"
    assert spin_count({"GOMP_SPINCOUNT": "1"}) == "1"
