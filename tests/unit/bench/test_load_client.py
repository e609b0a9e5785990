from __future__ import annotations

from typing import Any

import pytest

from tests.bench.errors import BenchError
from tests.bench.load_client import LoadedRequest, LoadReport, check_report


def loaded(**changes: Any) -> LoadedRequest:
    values: dict[str, Any] = {
        "stream": 0,
        "status": 200,
        "start_us": 0,
        "ttft_us": 1000,
        "end_us": 9000,
        "num_events": 4,
        "completion_tokens": 4,
        "prompt_tokens": 8,
        "is_done": True,
        "error": "",
        "gaps_us": [1, 2, 3],
    }
    return LoadedRequest(**{**values, **changes})


def check(*requests: LoadedRequest, num_requests: int = 2) -> int:
    report = LoadReport(1.0, 0.1, list(requests))
    return check_report(report, num_requests=num_requests, prompt_tokens=8, max_tokens=4)


def test_tokens_are_counted_by_requests_not_by_events() -> None:
    assert check(loaded(), loaded(num_events=1, gaps_us=[])) == 8


def test_a_server_without_usage_is_taken_at_its_word() -> None:
    assert check(loaded(completion_tokens=-1, prompt_tokens=-1), loaded()) == 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error": "status 503: busy"}, "1 of 2 requests failed: status 503: busy"),
        ({"completion_tokens": 3}, "an answer has 3 tokens instead of 4"),
        ({"prompt_tokens": 9}, "a prompt was counted as 9 tokens instead of 8"),
        ({"is_done": False}, r"a stream ended without \[DONE\]"),
    ],
)
def test_what_was_not_answered_in_full_is_no_measurement(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=f"^{message}$"):
        check(loaded(), loaded(**changes))


def test_requests_that_were_never_made_are_no_measurement() -> None:
    with pytest.raises(BenchError, match=r"^1 of 2 requests were made$"):
        check(loaded())


def test_times_of_all_requests_together() -> None:
    report = LoadReport(1.0, 0.1, [loaded(), loaded(ttft_us=-1, gaps_us=[]), loaded(ttft_us=5, gaps_us=[7])])
    assert report.ttfts_us == [1000, 5]
    assert report.gaps_us == [1, 2, 3, 7]
