from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from roundhouse.telemetry import metrics as m
from tests.soak import report
from tests.soak.exposition import Scrape, not_zero, parse_metrics

TEXT = """\
# HELP roundhouse_num_requests_running Requests.
# TYPE roundhouse_num_requests_running gauge
roundhouse_num_requests_running{model_name="a b"} 3.0
# TYPE roundhouse_engines gauge
roundhouse_engines{model_name="a b",state="admitted"} 2.0
roundhouse_engines{model_name="a b",state="stalled"} 1.0
# TYPE roundhouse_request_success_total counter
roundhouse_request_success_total{finished_reason="stop"} 5.0
roundhouse_request_success_total{finished_reason="length"} 2.0
# TYPE roundhouse_request_success_created gauge
roundhouse_request_success_created{finished_reason="stop"} 1.79e+09
# TYPE roundhouse_e2e_seconds histogram
roundhouse_e2e_seconds_bucket{le="+Inf"} 4.0
roundhouse_e2e_seconds_count 4.0
"""


def test_gauges_by_series_and_counters_by_name() -> None:
    assert parse_metrics(TEXT) == Scrape(
        gauges={
            'roundhouse_num_requests_running{model_name="a b"}': 3.0,
            'roundhouse_engines{model_name="a b",state="admitted"}': 2.0,
            'roundhouse_engines{model_name="a b",state="stalled"}': 1.0,
        },
        counters={"roundhouse_request_success_total": 7.0},
    )


def test_only_admitted_engines_may_be_left() -> None:
    assert not_zero(parse_metrics(TEXT)) == {
        'roundhouse_num_requests_running{model_name="a b"}': 3.0,
        'roundhouse_engines{model_name="a b",state="stalled"}': 1.0,
    }


def test_the_metrics_that_the_report_reads_exist() -> None:
    registry = CollectorRegistry()
    m.Metrics(registry, "model")
    scrape = parse_metrics(generate_latest(registry).decode())
    assert {report.GENERATED, report.PROMPTED, report.CACHED, report.PREEMPTED} <= scrape.counters.keys()
    assert len(scrape.gauges) == 8
    assert not_zero(scrape) == {}
