import re

import pytest
from prometheus_client import CollectorRegistry

from roundhouse.telemetry import metrics as m


def test_every_series_is_there_at_zero_from_the_start():
    registry = CollectorRegistry()
    m.Metrics(registry, "tiny")
    samples = [sample for family in registry.collect() for sample in family.samples]
    values = {sample.name: sample.value for sample in samples if not sample.name.endswith("_created")}
    assert set(values.values()) == {0.0}
    for metric in m.METRICS:
        assert (f"{metric.name}_count" if metric.kind is m.Kind.HISTOGRAM else metric.name) in values
    reasons = {s.labels["finished_reason"] for s in samples if s.name == m.REQUEST_SUCCESS.name}
    assert reasons == {"stop", "length", "abort", "error", "repetition"}
    assert {sample.labels["model_name"] for sample in samples} == {"tiny"}


@pytest.mark.parametrize("metric", m.METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric):
    assert re.fullmatch(r"roundhouse_[a-z0-9_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is m.Kind.COUNTER)
    assert metric.name.endswith("_seconds") == (metric.kind is m.Kind.HISTOGRAM)
    assert metric.help.endswith(".")
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert bool(metric.buckets) == (metric.kind is m.Kind.HISTOGRAM)


def test_names_are_unique():
    assert len({metric.name for metric in m.METRICS}) == len(m.METRICS)
