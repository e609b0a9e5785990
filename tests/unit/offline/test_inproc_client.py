"""A core behind plain calls: refusals first, then steps, and nothing when there is nothing to do."""

from roundhouse.offline.inproc_client import InprocClient
from roundhouse.protocol.messages import EngineCoreOutputs
from tests.support.builders import engine_core_request
from tests.support.engine_parts import engine_core


def test_refusals_come_before_a_step_is_run() -> None:
    client = InprocClient(engine_core())
    client.add_request(engine_core_request("good", max_tokens=1))
    client.add_request(engine_core_request("bad", [99]))
    refused = client.get_output()
    assert [(output.request_id, output.error.code) for output in refused.outputs] == [("bad", "invalid_request")]
    assert client.core.stats().num_steps_total == 0
    assert [output.request_id for output in client.get_output().outputs] == ["good"]


def test_without_requests_no_step_is_run() -> None:
    client = InprocClient(engine_core())
    assert client.get_output() == EngineCoreOutputs()
    assert client.core.stats().num_steps_total == 0


def test_an_abort_frees_at_once() -> None:
    client = InprocClient(engine_core())
    client.add_request(engine_core_request("a"))
    client.get_output()
    client.abort_requests(["a", "unknown"])
    stats = client.core.stats()
    assert (stats.num_running_reqs, stats.kv_cache_usage) == (0, 0.0)
    assert client.get_output().outputs == []
