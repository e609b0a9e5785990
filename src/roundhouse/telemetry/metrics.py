"""Every metric's name, labels, help and buckets, once; and `Metrics`, which makes them in a registry of one's own.

All series exist from the start, at zero: a rate over a series that appears with its first event misses that event.
Names and buckets follow vLLM's, so that dashboards are easily carried over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
"""Seconds: the time for one token, from a small model's on a GPU to a crowded CPU's."""

REQUEST_BUCKETS = (0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960, 1920, 7680)
"""Seconds: the time for a whole request or a long part of it."""

FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)

RESUME_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 40, 80, 160)
"""Seconds: from a drain that nobody sees to the wait for a replacement."""


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One line of the table. `labels` holds every value that a label can take. A counter's name ends in _total."""

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    buckets: tuple[float, ...] = ()


def _labels(**labels: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType(labels)


NUM_REQUESTS_RUNNING = Metric(
    "roundhouse_num_requests_running", Kind.GAUGE, "Requests that the engines compute, all frontends' together."
)
NUM_REQUESTS_WAITING = Metric(
    "roundhouse_num_requests_waiting", Kind.GAUGE, "Requests that wait in the engines, all frontends' together."
)
NUM_REQUESTS_LIVE = Metric(
    "roundhouse_num_requests_live",
    Kind.GAUGE,
    "Requests that this frontend holds for its clients, wherever they are; a choice of n is one.",
)
KV_CACHE_USAGE = Metric(
    "roundhouse_kv_cache_usage", Kind.GAUGE, "Fraction of the engines' KV cache blocks that requests hold, 0 to 1."
)
ENGINES = Metric(
    "roundhouse_engines",
    Kind.GAUGE,
    "Engines by what this frontend thinks of them.",
    _labels(state=("admitted", "stalled", "draining")),
)

PREFIX_CACHE_QUERIES = Metric(
    "roundhouse_prefix_cache_queries_total",
    Kind.COUNTER,
    "Prompt tokens that the engines looked for in their prefix caches.",
)
PREFIX_CACHE_HITS = Metric(
    "roundhouse_prefix_cache_hits_total", Kind.COUNTER, "Prompt tokens that the engines found in their prefix caches."
)
NUM_PREEMPTIONS = Metric(
    "roundhouse_num_preemptions_total",
    Kind.COUNTER,
    "Times that an engine put a running request back to waiting for lack of blocks.",
)

PROMPT_TOKENS = Metric(
    "roundhouse_prompt_tokens_total", Kind.COUNTER, "Prompt tokens of this frontend's requests that gave a first token."
)
GENERATION_TOKENS = Metric(
    "roundhouse_generation_tokens_total", Kind.COUNTER, "Tokens generated for this frontend's requests."
)
REQUEST_SUCCESS = Metric(
    "roundhouse_request_success_total",
    Kind.COUNTER,
    "This frontend's requests that ended, a choice each.",
    _labels(finished_reason=("stop", "length", "abort", "error", "repetition")),
)

TIME_TO_FIRST_TOKEN = Metric(
    "roundhouse_time_to_first_token_seconds",
    Kind.HISTOGRAM,
    "From a request's arrival to its first token.",
    buckets=FIRST_TOKEN_BUCKETS,
)
INTER_TOKEN_LATENCY = Metric(
    "roundhouse_inter_token_latency_seconds", Kind.HISTOGRAM, "Between two outputs of a request.", buckets=TOKEN_BUCKETS
)
E2E_REQUEST_LATENCY = Metric(
    "roundhouse_e2e_request_latency_seconds",
    Kind.HISTOGRAM,
    "From a request's arrival to its end.",
    buckets=REQUEST_BUCKETS,
)
REQUEST_QUEUE_TIME = Metric(
    "roundhouse_request_queue_time_seconds",
    Kind.HISTOGRAM,
    "That a request waited in its engine.",
    buckets=REQUEST_BUCKETS,
)
REQUEST_PREFILL_TIME = Metric(
    "roundhouse_request_prefill_time_seconds",
    Kind.HISTOGRAM,
    "From being scheduled to the first token.",
    buckets=REQUEST_BUCKETS,
)
REQUEST_DECODE_TIME = Metric(
    "roundhouse_request_decode_time_seconds",
    Kind.HISTOGRAM,
    "From the first token to the last.",
    buckets=REQUEST_BUCKETS,
)

MESH_LATE_OUTPUTS = Metric(
    "roundhouse_mesh_late_outputs_total",
    Kind.COUNTER,
    "Outputs dropped: of requests that are over, sent twice, or from an engine that lost the request.",
)
MESH_LATE_MESSAGES = Metric(
    "roundhouse_mesh_late_messages_total", Kind.COUNTER, "Whole messages dropped, of sessions that are over."
)
MESH_MALFORMED_FRAMES = Metric(
    "roundhouse_mesh_malformed_frames_total",
    Kind.COUNTER,
    "Messages dropped because no engine of ours would send them.",
)
MESH_REFUSED_SESSIONS = Metric(
    "roundhouse_mesh_refused_sessions_total", Kind.COUNTER, "Sessions with engines that were refused."
)
MESH_LOST_ENGINES = Metric("roundhouse_mesh_lost_engines_total", Kind.COUNTER, "Sessions with engines that ended.")
MESH_LOST_REQUESTS = Metric(
    "roundhouse_mesh_lost_requests_total",
    Kind.COUNTER,
    "Requests that were accepted and then given up, since no engine could go on with them.",
)
MESH_WAITING_REQUESTS = Metric(
    "roundhouse_mesh_waiting_requests", Kind.GAUGE, "Requests of this frontend that no engine has at this moment."
)
MESH_RESUMES = Metric(
    "roundhouse_mesh_resumes_total",
    Kind.COUNTER,
    "Requests that another engine went on with, by what became of the one before.",
    _labels(cause=("died", "unreachable", "gap", "replaced", "stalled", "overrun", "drained", "revoked")),
)
MESH_RESUME_GAP = Metric(
    "roundhouse_mesh_resume_gap_seconds",
    Kind.HISTOGRAM,
    "From the last token before a loss to the next one from another engine.",
    buckets=RESUME_BUCKETS,
)
MESH_REPLAYED_TOKENS = Metric(
    "roundhouse_mesh_replayed_tokens_total",
    Kind.COUNTER,
    "Tokens, prompt and outputs, that an engine was given again to go on behind them.",
)
MESH_REFUSED_PEERS = Metric(
    "roundhouse_mesh_refused_peers_total",
    Kind.COUNTER,
    "Connections or Hellos refused because of keys: a key that is not allowed (key), no key or another server's "
    "(handshake), a key that was revoked, another engine's identity, another epoch than the key is for.",
    _labels(reason=("key", "handshake", "revoked", "identity", "epoch")),
)
MESH_DROPPED_FRAMES = Metric(
    "roundhouse_mesh_dropped_frames_total",
    Kind.COUNTER,
    "Messages dropped because of keys: of another user id than their session's, or of a key that was revoked.",
    _labels(reason=("user_id", "revoked")),
)
MESH_KEY_RELOAD_FAILURES = Metric(
    "roundhouse_mesh_key_reload_failures_total",
    Kind.COUNTER,
    "Changes of the key folder that could not be read; the keys from before stayed in force.",
)
MESH_ZAP_RESTARTS = Metric(
    "roundhouse_mesh_zap_restarts_total",
    Kind.COUNTER,
    "Times that the handler of the mesh's keys died and was restarted.",
)

MESH_OVER_LIMIT = Metric(
    "roundhouse_mesh_over_limit_total",
    Kind.COUNTER,
    "What was too much: Hellos of one peer (hello_rate), Hellos of one engine that wait for their other half "
    "(hello_halves), connections (connections), bytes without a Hello (bytes_before_hello), bytes without the end of a "
    "message (bytes_unread), connections of one key (connections_per_peer), of a key that is not allowed any more "
    "(revoked). The first two were dropped, the others cost a connection each.",
    _labels(
        limit=(
            "hello_rate",
            "hello_halves",
            "connections",
            "connections_per_peer",
            "revoked",
            "bytes_before_hello",
            "bytes_unread",
        )
    ),
)

MESH_CONNECTIONS_WITHOUT_HELLO = Metric(
    "roundhouse_mesh_connections_without_hello_total",
    Kind.COUNTER,
    "Tcp connections to the mesh that ended before a message came by them, for whatever reason: port scans, garbage, "
    "those that were refused.",
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""The table, in the order above."""


class Metrics:
    """The metrics of one model in `registry`; each series has the label `model_name` and those of the table."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._series: dict[tuple[Metric, tuple[str, ...]], Counter | Gauge | Histogram] = {}
        for metric in METRICS:
            family = _make(metric, registry)
            for values in product(*metric.labels.values()):
                self._series[metric, values] = family.labels(model_name, *values)

    def counter(self, metric: Metric, *label_values: str) -> Counter:
        series = self._series[metric, label_values]
        assert isinstance(series, Counter)
        return series

    def gauge(self, metric: Metric, *label_values: str) -> Gauge:
        series = self._series[metric, label_values]
        assert isinstance(series, Gauge)
        return series

    def histogram(self, metric: Metric, *label_values: str) -> Histogram:
        series = self._series[metric, label_values]
        assert isinstance(series, Histogram)
        return series


def _make(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    names = ("model_name", *metric.labels)
    match metric.kind:
        case Kind.COUNTER:
            return Counter(metric.name, metric.help, names, registry=registry)
        case Kind.GAUGE:
            return Gauge(metric.name, metric.help, names, registry=registry)
        case Kind.HISTOGRAM:
            return Histogram(metric.name, metric.help, names, registry=registry, buckets=metric.buckets)
