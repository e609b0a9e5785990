"""`PrometheusStatLogger`: requests, engines and mesh → the metrics of this frontend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, runtime_checkable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from roundhouse.frontend.core_client import EngineCoreClient
from roundhouse.frontend.guard import KeyCounters
from roundhouse.frontend.live_request import Resumed
from roundhouse.frontend.loss import LossCause
from roundhouse.frontend.stats import EngineLife, EngineSample, FinishedRequest, IterationStats
from roundhouse.protocol.messages import SchedulerStats
from roundhouse.telemetry import metrics as m


class MeshCounters(Protocol):
    """What the client of a mesh counts, from its start on."""

    num_refused: int
    num_lost: int
    num_requests_lost: int
    num_malformed: int
    num_late_outputs: int
    num_late_messages: int
    num_replayed_tokens: int
    num_resumes: dict[LossCause, int]


@runtime_checkable
class CountsMesh(Protocol):
    @property
    def counters(self) -> MeshCounters: ...

    @property
    def num_waiting(self) -> int:
        """Live requests that no engine has."""
        ...

    def key_counters(self) -> KeyCounters: ...

    @property
    def num_without_hello(self) -> int:
        """Connections that ended, and no message had come by them."""
        ...

    def limit_counters(self) -> Mapping[str, int]:
        """What was too much, by the metric's label."""
        ...

    @property
    def resume_listeners(self) -> list[Callable[[Resumed], None]]: ...


class PrometheusStatLogger:
    """Fills `registry`, its own, for the model that is served as `model_name`.

    What is true of the engines at this moment is asked when the metrics are read. So a gauge is right also when nothing
    runs, as after all clients left at once: the engines' Pongs bring their load every second.
    """

    def __init__(self, client: EngineCoreClient, *, model_name: str) -> None:
        self.registry = CollectorRegistry()
        # First, because collectors are asked in the order of their registration.
        self.registry.register(_BeforeReading(self._refresh))
        self._metrics = m.Metrics(self.registry, model_name)
        self._client = client
        self._num_live: Callable[[], int] = lambda: 0
        self._totals: dict[EngineLife, SchedulerStats] = {}
        self._counted: dict[tuple[m.Metric | str, ...], int] = {}
        if isinstance(client, CountsMesh):
            observe = self._metrics.histogram(m.MESH_RESUME_GAP).observe
            client.resume_listeners.append(lambda resumed: observe(resumed.gap_s))

    def watch_live_requests(self, count: Callable[[], int]) -> None:
        """`count` is asked when the metrics are read."""
        self._num_live = count

    def record(self, iteration: IterationStats, engine: EngineSample | None) -> None:
        metrics = self._metrics
        if iteration.num_prompt_tokens:
            metrics.counter(m.PROMPT_TOKENS).inc(iteration.num_prompt_tokens)
        if iteration.num_generation_tokens:
            metrics.counter(m.GENERATION_TOKENS).inc(iteration.num_generation_tokens)
        if iteration.num_late_outputs:
            metrics.counter(m.MESH_LATE_OUTPUTS).inc(iteration.num_late_outputs)
        for seconds in iteration.time_to_first_token_s:
            metrics.histogram(m.TIME_TO_FIRST_TOKEN).observe(seconds)
        observe = metrics.histogram(m.INTER_TOKEN_LATENCY).observe
        for seconds in iteration.inter_token_s:
            observe(seconds)
        for finished in iteration.finished:
            self._record_finished(finished)
        if engine is not None:
            self._record_totals(engine)

    def _record_finished(self, finished: FinishedRequest) -> None:
        self._metrics.counter(m.REQUEST_SUCCESS, str(finished.finish_reason)).inc()
        self._metrics.histogram(m.E2E_REQUEST_LATENCY).observe(finished.e2e_s)
        for metric, seconds in (
            (m.REQUEST_QUEUE_TIME, finished.queue_s),
            (m.REQUEST_PREFILL_TIME, finished.prefill_s),
            (m.REQUEST_DECODE_TIME, finished.decode_s),
        ):
            if seconds is not None:
                self._metrics.histogram(metric).observe(seconds)

    def _record_totals(self, sample: EngineSample) -> None:
        """An engine's totals begin at zero with each of its lives, a counter never falls: it gets what was added."""
        old, new = self._totals.get(sample.engine, SchedulerStats()), sample.stats
        for metric, added in (
            (m.PREFIX_CACHE_QUERIES, new.prefix_cache_queries_total - old.prefix_cache_queries_total),
            (m.PREFIX_CACHE_HITS, new.prefix_cache_hits_total - old.prefix_cache_hits_total),
            (m.NUM_PREEMPTIONS, new.num_preemptions_total - old.num_preemptions_total),
        ):
            if added > 0:
                self._metrics.counter(metric).inc(added)
        if sample.engine not in self._totals:
            index = sample.engine[0]
            self._totals = {life: stats for life, stats in self._totals.items() if life[0] != index}
        self._totals[sample.engine] = new

    def _refresh(self) -> None:
        views = self._client.engines()
        loads = [view.load for view in views]
        gauge = self._metrics.gauge
        gauge(m.NUM_REQUESTS_RUNNING).set(sum(load.num_running_reqs for load in loads))
        gauge(m.NUM_REQUESTS_WAITING).set(sum(load.num_waiting_reqs for load in loads))
        gauge(m.NUM_REQUESTS_LIVE).set(self._num_live())
        num_blocks = sum(view.hello.num_blocks for view in views)
        used_blocks = sum(view.hello.num_blocks * view.load.kv_cache_usage for view in views)
        gauge(m.KV_CACHE_USAGE).set(used_blocks / num_blocks if num_blocks else 0.0)
        states = [view.state for view in views]
        for state in m.ENGINES.labels["state"]:
            gauge(m.ENGINES, state).set(states.count(state))
        if isinstance(self._client, CountsMesh):
            counters = self._client.counters
            self._advance(m.MESH_LATE_OUTPUTS, counters.num_late_outputs)
            self._advance(m.MESH_LATE_MESSAGES, counters.num_late_messages)
            self._advance(m.MESH_MALFORMED_FRAMES, counters.num_malformed)
            self._advance(m.MESH_REFUSED_SESSIONS, counters.num_refused)
            self._advance(m.MESH_LOST_ENGINES, counters.num_lost)
            self._advance(m.MESH_LOST_REQUESTS, counters.num_requests_lost)
            self._advance(m.MESH_REPLAYED_TOKENS, counters.num_replayed_tokens)
            for cause, total in counters.num_resumes.items():
                self._advance(m.MESH_RESUMES, total, cause)
            keys = self._client.key_counters()
            for reason, total in keys.num_refused_peers.items():
                self._advance(m.MESH_REFUSED_PEERS, total, reason)
            for reason, total in keys.num_dropped_frames.items():
                self._advance(m.MESH_DROPPED_FRAMES, total, reason)
            self._advance(m.MESH_KEY_RELOAD_FAILURES, keys.num_reload_failures)
            self._advance(m.MESH_ZAP_RESTARTS, keys.num_zap_restarts)
            for limit, total in self._client.limit_counters().items():
                self._advance(m.MESH_OVER_LIMIT, total, limit)
            self._advance(m.MESH_CONNECTIONS_WITHOUT_HELLO, self._client.num_without_hello)
            gauge(m.MESH_WAITING_REQUESTS).set(self._client.num_waiting)

    def _advance(self, metric: m.Metric, total: int, *labels: str) -> None:
        key = (metric, *labels)
        self._metrics.counter(metric, *labels).inc(total - self._counted.get(key, 0))
        self._counted[key] = total


class _BeforeReading(Collector):
    """Has no metrics of its own: it brings the others up to date."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self._refresh = refresh

    def describe(self) -> Iterable[MetricFamily]:
        return ()

    def collect(self) -> Iterable[MetricFamily]:
        self._refresh()
        return ()
