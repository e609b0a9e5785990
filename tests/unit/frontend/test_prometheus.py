import msgspec

from roundhouse.frontend.guard import KeyCounters
from roundhouse.frontend.live_request import Resumed
from roundhouse.frontend.loss import LossCause
from roundhouse.frontend.mesh_limits import MeshLimits
from roundhouse.frontend.mp_client import Counters
from roundhouse.frontend.prometheus import PrometheusStatLogger
from roundhouse.frontend.stats import EngineSample, FinishedRequest, IterationStats
from roundhouse.protocol.messages import SchedulerStats
from roundhouse.protocol.sampling import FinishReason
from roundhouse.telemetry import metrics as m
from roundhouse.transport.connection_guard import ConnectionGuard
from tests.support.scripted_client import ScriptedClient


class MeshClient(ScriptedClient):
    num_waiting = num_without_hello = 0

    def __init__(self):
        super().__init__()
        self.counters = Counters()
        self.resume_listeners = []
        self.keys = KeyCounters({"key": 0, "epoch": 0}, {"user_id": 0})
        self.limits = {}

    def key_counters(self):
        return self.keys

    def limit_counters(self):
        return self.limits


def read(stat_logger, name, **labels):
    """The value as a scrape sees it."""
    for family in stat_logger.registry.collect():
        for sample in family.samples:
            if sample.name == name and sample.labels == {"model_name": "tiny", **labels}:
                return sample.value
    raise KeyError(name)


def test_what_requests_did():
    stat_logger = PrometheusStatLogger(ScriptedClient(), model_name="tiny")
    finished = FinishedRequest(FinishReason.ABORT, 5, 3, e2e_s=4.0, queue_s=0.5, prefill_s=None, decode_s=1.5)
    stat_logger.record(IterationStats(5, 3, 2, [0.2], [0.1, 0.1], [finished]), None)
    names = {
        "roundhouse_prompt_tokens_total": 5,
        "roundhouse_generation_tokens_total": 3,
        "roundhouse_mesh_late_outputs_total": 2,
        "roundhouse_time_to_first_token_seconds_sum": 0.2,
        "roundhouse_inter_token_latency_seconds_count": 2,
        "roundhouse_e2e_request_latency_seconds_sum": 4.0,
        "roundhouse_request_queue_time_seconds_sum": 0.5,
        "roundhouse_request_prefill_time_seconds_count": 0,
        "roundhouse_request_decode_time_seconds_sum": 1.5,
    }
    assert {name: read(stat_logger, name) for name in names} == names
    assert read(stat_logger, "roundhouse_request_success_total", finished_reason="abort") == 1
    assert read(stat_logger, "roundhouse_request_success_total", finished_reason="stop") == 0


def test_gauges_are_asked_when_read_and_go_back_to_zero_without_any_step():
    client = ScriptedClient()
    stat_logger = PrometheusStatLogger(client, model_name="tiny")
    client.load = SchedulerStats(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.25)
    names = ("roundhouse_num_requests_running", "roundhouse_num_requests_waiting", "roundhouse_kv_cache_usage")
    assert [read(stat_logger, name) for name in names] == [3, 2, 0.25]
    assert read(stat_logger, "roundhouse_engines", state="admitted") == 1
    client.load = SchedulerStats()
    assert [read(stat_logger, name) for name in names] == [0, 0, 0]
    client.hello = None
    assert read(stat_logger, "roundhouse_engines", state="admitted") == 0


def test_totals_of_an_engine_count_from_each_of_its_starts():
    stat_logger = PrometheusStatLogger(ScriptedClient(), model_name="tiny")
    totals = SchedulerStats(prefix_cache_queries_total=10, prefix_cache_hits_total=4, num_preemptions_total=1)

    def record(epoch, **changes):
        sample = EngineSample((0, (1, epoch)), msgspec.structs.replace(totals, **changes))
        stat_logger.record(IterationStats(), sample)

    record(1)
    record(1)
    record(1, prefix_cache_queries_total=15)
    record(2)
    assert read(stat_logger, "roundhouse_prefix_cache_queries_total") == 25
    assert read(stat_logger, "roundhouse_prefix_cache_hits_total") == 8
    assert read(stat_logger, "roundhouse_num_preemptions_total") == 2


def test_what_the_mesh_counts():
    client = MeshClient()
    stat_logger = PrometheusStatLogger(client, model_name="tiny")
    client.counters.num_lost, client.counters.num_requests_lost = 1, 6
    assert read(stat_logger, "roundhouse_mesh_lost_engines_total") == 1
    client.counters.num_lost = 2
    assert read(stat_logger, "roundhouse_mesh_lost_engines_total") == 2
    assert read(stat_logger, "roundhouse_mesh_lost_requests_total") == 6
    assert read(stat_logger, "roundhouse_mesh_refused_sessions_total") == 0


def test_what_keys_kept_out():
    client = MeshClient()
    stat_logger = PrometheusStatLogger(client, model_name="tiny")
    client.keys = KeyCounters({"key": 3, "epoch": 1}, {"user_id": 2}, 1, 1)
    assert read(stat_logger, "roundhouse_mesh_refused_peers_total", reason="key") == 3
    assert read(stat_logger, "roundhouse_mesh_refused_peers_total", reason="epoch") == 1
    assert read(stat_logger, "roundhouse_mesh_refused_peers_total", reason="identity") == 0
    assert read(stat_logger, "roundhouse_mesh_dropped_frames_total", reason="user_id") == 2
    assert read(stat_logger, "roundhouse_mesh_key_reload_failures_total") == 1
    assert read(stat_logger, "roundhouse_mesh_zap_restarts_total") == 1


def test_what_was_too_much():
    client = MeshClient()
    stat_logger = PrometheusStatLogger(client, model_name="tiny")
    client.limits = {"hello_rate": 5, "connections": 2}
    assert read(stat_logger, "roundhouse_mesh_over_limit_total", limit="hello_rate") == 5
    assert read(stat_logger, "roundhouse_mesh_over_limit_total", limit="connections") == 2
    assert read(stat_logger, "roundhouse_mesh_over_limit_total", limit="bytes_unread") == 0
    client.num_without_hello = 7
    assert read(stat_logger, "roundhouse_mesh_connections_without_hello_total") == 7


def test_every_limit_has_a_series():
    mesh = MeshLimits().counters(0, {**ConnectionGuard({1}, lambda: 0.0).num_cut})
    assert m.MESH_OVER_LIMIT.labels["limit"] == tuple(mesh)


def test_what_resumptions_cost():
    client = MeshClient()
    stat_logger = PrometheusStatLogger(client, model_name="tiny")
    client.counters.num_resumes[LossCause.DRAINED] = 2
    client.counters.num_replayed_tokens = 70
    client.num_waiting = 3
    for listener in client.resume_listeners:
        listener(Resumed(LossCause.DRAINED, 0.25, 35))
    assert read(stat_logger, "roundhouse_mesh_resumes_total", cause="drained") == 2
    assert read(stat_logger, "roundhouse_mesh_resumes_total", cause="died") == 0
    assert read(stat_logger, "roundhouse_mesh_replayed_tokens_total") == 70
    assert read(stat_logger, "roundhouse_mesh_resume_gap_seconds_sum") == 0.25
    assert read(stat_logger, "roundhouse_mesh_waiting_requests") == 3


def test_every_cause_has_a_series():
    assert m.MESH_RESUMES.labels["cause"] == tuple(LossCause)


def test_live_requests_are_counted_when_read():
    stat_logger = PrometheusStatLogger(ScriptedClient(), model_name="tiny")
    assert read(stat_logger, "roundhouse_num_requests_live") == 0
    live = [1, 2]
    stat_logger.watch_live_requests(lambda: len(live))
    assert read(stat_logger, "roundhouse_num_requests_live") == 2
