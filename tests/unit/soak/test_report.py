"""What is written for machines and shown to people."""

from __future__ import annotations

from io import StringIO

import msgspec
from rich.console import Console

from tests.soak.exposition import Scrape
from tests.soak.memory import MemoryVerdict, Trend
from tests.soak.processes import ProcessSample
from tests.soak.promises import Promise
from tests.soak.recording import Recording
from tests.soak.report import (
    CACHED,
    GENERATED,
    PROMPTED,
    Report,
    Speed,
    as_json,
    as_tables,
    judge_all_memory,
    speed_of,
)
from tests.soak.slope import Slope
from tests.soak.tally import Failure, Outcome, Tally


def recording(run_s: float) -> Recording:
    """40 tokens a second from 1,000 on, half as many in the second half; one process of 200 MiB."""
    recorded = Recording()
    for at_s in range(0, int(run_s) + 1, 5):
        tokens = 1000 + 40 * min(at_s, run_s / 2) + 20 * max(0.0, at_s - run_s / 2)
        recorded.scrapes.append((float(at_s), Scrape({}, {GENERATED: tokens, PROMPTED: 5000.0, CACHED: 500.0})))
        recorded.processes.append(ProcessSample(float(at_s), "frontend", 7, 200, 180, 20, 0, 190, 180, 30, 4, 1))
    return recorded


def report() -> Report:
    tally = Tally()
    tally.count("seed", Outcome.AS_MEANT)
    tally.count("seed", Outcome.CUT)
    tally.statuses[200] += 2
    tally.finish_reasons["stop"] += 1
    tally.fail(Failure("logprobs", "soak-3", 9.5, "status 500: [oh]"))
    return Report(
        settings={"minutes": 4.0},
        load_s=240.04,
        warm_up_s=120.0,
        speed=Speed(30.0, 40.0, 20.04),
        num_preemptions=3,
        prefix_hit_rate=0.12345,
        tally=tally,
        memory={"frontend": MemoryVerdict(Trend.FLAT, 200.04, 0.001, Slope(0.5, -1.0, 2.0))},
        promises=[Promise("every client is treated as it should be", False, "1 of 3 wrongly")],
        log_lines={"soak-3": ["a line"]},
        troubled_lines=["x ERROR [y]"],
    )


def test_speed_by_quarters() -> None:
    assert speed_of(recording(400), 400) == Speed(30.0, 40.0, 20.0)
    assert speed_of(Recording(), 400) == Speed(0.0, 0.0, 0.0)


def test_memory_is_judged_once_the_pool_was_used() -> None:
    # 5,500 tokens are computed when the load begins, and 40 a second come to them.
    start_s, memory = judge_all_memory(recording(400), 400, pool_tokens=3600)
    assert start_s == 120.0
    assert memory == {"frontend": MemoryVerdict(Trend.FLAT, 200, 0.0, Slope(0.0, 0.0, 0.0))}
    start_s, _ = judge_all_memory(recording(400), 400, pool_tokens=8000)
    assert start_s == 165.0
    start_s, memory = judge_all_memory(recording(400), 400, pool_tokens=50_000)
    assert (start_s, memory["frontend"].trend) == (float("inf"), Trend.TOO_SHORT)


def test_json() -> None:
    written = msgspec.json.decode(msgspec.json.encode(as_json(report())))
    assert written == {
        "settings": {"minutes": 4.0},
        "load_s": 240.0,
        "warm_up_s": 120.0,
        "tokens_per_s": {"whole": 30.0, "first_quarter": 40.0, "last_quarter": 20.0},
        "num_preemptions": 3,
        "prefix_hit_rate": 0.123,
        "requests": {"logprobs": {"wrong": 1}, "seed": {"as meant": 1, "cut at the end": 1}},
        "http_statuses": {"200": 2},
        "finish_reasons": {"stop": 1},
        "failures": [
            {
                "kind": "logprobs",
                "request_id": "soak-3",
                "at_s": 9.5,
                "what": "status 500: [oh]",
                "log": ["a line"],
            }
        ],
        "memory": {
            "frontend": {
                "trend": "flat",
                "level_mib": 200.0,
                "growth_mib": 0.0,
                "slope_mib_per_hour": {"per_hour": 0.5, "low": -1.0, "high": 2.0},
            }
        },
        "promises": [{"what": "every client is treated as it should be", "is_kept": False, "detail": "1 of 3 wrongly"}],
        "troubled_log_lines": ["x ERROR [y]"],
        "is_broken": True,
    }


def test_tables_show_failures_with_their_log_lines() -> None:
    shown = StringIO()
    Console(file=shown, width=160).print(as_tables(report()))
    text = shown.getvalue()
    assert "logprobs soak-3 at 9.5 s: status 500: [oh]\n    a line\n" in text
    assert "x ERROR [y]" in text
    assert "30.0; first quarter 40.0, last 20.0" in text
