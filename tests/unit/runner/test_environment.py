"""What the libraries under torch are told before they are loaded, unless someone knows better."""

from __future__ import annotations

import json
import os
import subprocess
import sys

NAMES = ["GOMP_SPINCOUNT", "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"]


def environment_of_an_engine(given: dict[str, str]) -> dict[str, str]:
    """As it is once an engine's modules are imported."""
    code = f"import json, os, roundhouse.runner.worker; print(json.dumps([os.environ[name] for name in {NAMES}]))"
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    answer = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **given}, capture_output=True, text=True, check=True
    )
    return dict(zip(NAMES, json.loads(answer.stdout), strict=True))


def test_short_spins_and_small_caches() -> None:
    assert environment_of_an_engine({}) == dict(zip(NAMES, ["6000", "64", "64"], strict=True))


def test_what_is_given_stays() -> None:
    given = dict.fromkeys(NAMES, "7")
    assert environment_of_an_engine(given) == given
