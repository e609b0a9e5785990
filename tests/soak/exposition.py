"""Prometheus' text format → numbers, as far as a soak reads it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scrape:
    """gauges: each series by its name and labels as they stand in the text. counters: by name, all labels summed."""

    gauges: dict[str, float]
    counters: dict[str, float]


def parse_metrics(text: str) -> Scrape:
    """Raises `ValueError` for a line that is no sample."""
    kinds: dict[str, str] = {}
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            kinds[name] = kind
        elif line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name = series.partition("{")[0]
            # `_created` is no gauge although it says so: the time at which a counter was made.
            if kinds.get(name) == "gauge" and not name.endswith("_created"):
                gauges[series] = float(value)
            elif kinds.get(name) == "counter":
                counters[name] = counters.get(name, 0.0) + float(value)
    return Scrape(gauges, counters)


def not_zero(scrape: Scrape) -> dict[str, float]:
    """The gauges that must be zero when nothing runs and are not: all but the number of admitted engines."""
    return {
        series: value
        for series, value in scrape.gauges.items()
        if value != 0 and not (series.startswith("roundhouse_engines{") and 'state="admitted"' in series)
    }
