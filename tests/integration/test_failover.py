"""No engine's end, pause or lost message is seen by a client: what comes is an undisturbed run's, bit by bit."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from roundhouse.frontend.suspicion import MAX_DEATHS, MAX_LOSSES
from tests.chaos.client import CHAT, COMPLETIONS, Call, Stream, new_http_client
from tests.chaos.faulty_engine import BUSY_S, HOLDS_GIL, KILLS, SLEEPS
from tests.chaos.proxied_cluster import ProxiedCluster, contended, start_alone, start_what_is_down
from tests.chaos.settings import ENGINE_ARGUMENTS
from tests.chaos.transcript import Answer, difference
from tests.support.cluster import Cluster, EngineProcess, eventually
from tests.support.engine_nursery import EngineNursery

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_TOKENS = 64
KILLS_A_RUN = 4
"""Each run of the streams is disturbed so often, at places that are equally far apart: a quarter of the work."""

MANY = 50
FEW_TOKENS = 32
OVER_S = 400.0
"""A stream that is not over by now hangs: long enough for a machine that others keep busy."""

LOST_ENGINES = "roundhouse_mesh_lost_engines_total"
LATE_OUTPUTS = "roundhouse_mesh_late_outputs_total"
LOST_REQUESTS = "roundhouse_mesh_lost_requests_total"
OUTPUTS, PONG, ADD = b"\x00", b"\x03", b"\x00"
"""First frames of messages."""


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with new_http_client() as client:
        yield client


Known = dict[str, Answer]


@pytest.fixture(scope="module")
def known() -> Known:
    """Undisturbed answers, by the names of their calls."""
    return {}


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, str(smollm2_folder), engine_arguments=ENGINE_ARGUMENTS) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: Cluster) -> Cluster:
    """One frontend, two engines, nothing running."""
    start_what_is_down(running_cluster)
    return running_cluster


@pytest.fixture(scope="module")
def running_faulty(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Iterator[ProxiedCluster]:
    with ProxiedCluster(
        tmp_path_factory.mktemp("faulty"),
        str(smollm2_folder),
        engine_arguments=ENGINE_ARGUMENTS,
        nursery=EngineNursery("tests.chaos.faulty_engine"),
    ) as cluster:
        yield cluster


@pytest.fixture
def faulty(running_faulty: ProxiedCluster) -> ProxiedCluster:
    """The same behind proxies, with engines that fail on certain tokens."""
    start_what_is_down(running_faulty)
    return running_faulty


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Iterator[Cluster]:
    """One frontend that waits a second for an engine and two for a replacement; its one engine."""
    with Cluster(
        tmp_path_factory.mktemp("impatient"),
        str(smollm2_folder),
        num_engines=1,
        engine_arguments=ENGINE_ARGUMENTS,
        frontend_arguments=("--wait-timeout", "1", "--resume-timeout", "2"),
    ) as cluster:
        yield cluster


def completion(name: str, prompt: str | list[int], **body: Any) -> Call:
    return Call(name, COMPLETIONS, _common() | {"prompt": prompt} | body)


def chat(name: str, content: str, **body: Any) -> Call:
    return Call(name, CHAT, _common() | {"messages": [{"role": "user", "content": content}]} | body)


def _common() -> dict[str, Any]:
    return {
        "model": "m",
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def letters(num: int) -> list[Call]:
    return [completion(f"letter {i}", f"Dear friend {i}, I write", max_tokens=FEW_TOKENS) for i in range(num)]


def whole(call: Call) -> Call:
    """The same without a stream."""
    body = {name: value for name, value in call.body.items() if name not in ("stream", "stream_options")}
    return Call(f"{call.name}, whole", call.path, body)


GREEDY = completion("greedy", "The lighthouse keeper wrote in his diary:")
FERRY = "Write about a ferry."
SAMPLED: dict[str, Any] = {"temperature": 1, "seed": 7, "top_p": 0.95}
PENALTIES = {"presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.1, "min_tokens": 40}


GUIDED = completion(
    "guided, seeded",
    "Three towns as JSON:",
    **SAMPLED,
    ignore_eos=False,
    response_format={
        "type": "json_schema",
        "json_schema": {
            "schema": {
                "type": "array",
                "minItems": 3,
                "maxItems": 3,
                "items": {
                    "type": "object",
                    "properties": {"town": {"type": "string", "maxLength": 12}},
                    "required": ["town"],
                },
            }
        },
    },
)


def every_kind(stop: str) -> list[Call]:
    return [
        GREEDY,
        completion("seeded, penalties", "Once upon a time", **SAMPLED, **PENALTIES),
        completion("n = 3", "My favourite colour is", **SAMPLED, n=3),
        completion("logprobs", "The capital of France", logprobs=3),
        chat("chat, stop string", FERRY, stop=[stop]),
        chat("chat, seeded, logprobs", "Name a river.", **SAMPLED, logprobs=True, top_logprobs=2),
        whole(completion("completion", "Two plus two", **SAMPLED)),
        whole(chat("chat", FERRY, stop=[stop])),
    ]


def start(client: httpx.Client, cluster: Cluster, calls: Sequence[Call]) -> list[Stream]:
    return [Stream(client, cluster.frontends[0].url, call) for call in calls]


def results(streams: Sequence[Stream]) -> list[Answer]:
    return [stream.result(OVER_S) for stream in streams]


def run(client: httpx.Client, cluster: Cluster, calls: Sequence[Call]) -> list[Answer]:
    """Undisturbed, all at once."""
    return results(start(client, cluster, calls))


def answers_to(calls: Sequence[Call], known: Known, client: httpx.Client, cluster: Cluster) -> list[Answer]:
    """Undisturbed; those that are not known yet are asked for."""
    new = [call for call in calls if call.name not in known]
    known.update(zip([call.name for call in new], run(client, cluster, new), strict=True))
    return [known[call.name] for call in calls]


def assert_same(streams: Sequence[Stream], expected: Sequence[Answer], where: str) -> None:
    differences = {
        stream.call.name: found
        for stream, wanted in zip(streams, expected, strict=True)
        if (found := difference(stream.result(OVER_S), wanted))
    }
    assert not differences, f"{where}: {differences}"


def wait_until_placed(cluster: Cluster, engine: EngineProcess, streams: Sequence[Stream]) -> None:
    num_choices = sum(stream.call.num_choices for stream in streams)
    frontend = cluster.frontends[0]
    eventually(
        lambda: (
            frontend.engines()[engine.identity]["num_inflight"] == num_choices
            or any(stream.is_over for stream in streams)
        ),
        f"{num_choices} requests at {engine.identity}",
        frontend.log,
    )


def resumes(cluster: Cluster) -> float:
    metrics = cluster.frontends[0].metrics()
    return sum(value for name, value in metrics.items() if name.startswith("roundhouse_mesh_resumes_total"))


def wait_until_idle(cluster: Cluster) -> None:
    """No engine holds a request, a row or a block of one, and none waits at the frontend."""
    frontend = cluster.frontends[0]

    def is_idle() -> bool:
        load = frontend.load()
        names = ("num_running", "num_waiting", "num_unplaced", "kv_cache_usage")
        return not any(load[name] for name in names) and not any(
            engine["num_inflight"] for engine in frontend.engines().values()
        )

    eventually(is_idle, "an idle cluster", frontend.log)


def stop_near(answer: Answer, index: int) -> str:
    """The text from about that token on, if it is there for the first time."""
    text = answer.choices[0].text
    place = len(text) * index // NUM_TOKENS
    found = next((text[i : i + 6] for i in range(place, len(text) - 6) if text.find(text[i : i + 6]) == i), None)
    assert found is not None, text
    return found


def kill_in_turn(
    stream: Stream, indexes: Sequence[int], victim: EngineProcess, survivor: EngineProcess
) -> tuple[EngineProcess, EngineProcess]:
    """Kills the engine that runs after each of these tokens; the other one is started before. Returns who is next to be
    killed, and the other."""
    for index in indexes:
        survivor.start()
        stream.wait_for_tokens(index, OVER_S)
        victim.kill()
        victim.wait()
        victim, survivor = survivor, victim
    return victim, survivor


@pytest.mark.timeout(1800)
def test_killed_at_every_index(cluster: Cluster, client: httpx.Client) -> None:
    """The two engines take turns: one is killed; the other, which was started meanwhile, goes on and is the next."""
    victim, survivor = cluster.engines
    start_alone(cluster, victim)
    (unstopped,) = run(client, cluster, [chat("chat", FERRY)])
    calls = every_kind(stop_near(unstopped, 48))
    expected = run(client, cluster, calls)
    assert [choice.finish_reason for choice in expected[4].choices.values()] == ["stop"]
    before = resumes(cluster)
    step = NUM_TOKENS // KILLS_A_RUN
    for first in range(step):
        indexes = range(first, NUM_TOKENS, step)
        streams = start(client, cluster, calls)
        wait_until_placed(cluster, victim, streams)
        victim, survivor = kill_in_turn(streams[0], indexes, victim, survivor)
        assert_same(streams, expected, f"killed after tokens {list(indexes)}")
    # Of 10 choices, two of which end at token 48; near the last token some have ended before the kill.
    assert resumes(cluster) - before > 9 * (NUM_TOKENS - 20)
    assert cluster.frontends[0].metrics()[LOST_REQUESTS] == 0


def test_a_guided_stream_goes_on_where_its_grammar_was(cluster: Cluster, client: httpx.Client) -> None:
    victim, survivor = cluster.engines
    expected = run(client, cluster, [GUIDED])
    before = resumes(cluster)
    start_alone(cluster, victim)
    streams = start(client, cluster, [GUIDED])
    wait_until_placed(cluster, victim, streams)
    indexes = (1, 6, 11)
    kill_in_turn(streams[0], indexes, victim, survivor)
    assert_same(streams, expected, f"killed after tokens {indexes}")
    assert resumes(cluster) - before == len(indexes)


def test_sigterm_moves_fifty_streams_and_the_engine_leaves(cluster: Cluster, client: httpx.Client) -> None:
    leaving, staying = cluster.engines
    calls = [completion(f"stream {i}", f"The number {i % 5} is", max_tokens=96) for i in range(MANY)]
    expected = run(client, cluster, calls)
    start_alone(cluster, leaving)
    streams = start(client, cluster, calls)
    wait_until_placed(cluster, leaving, streams)
    staying.start()
    cluster.wait_for_engines()
    streams[0].wait_for_tokens(4, OVER_S)
    asked = time.monotonic()
    leaving.signal(signal.SIGTERM)
    leaving.wait()
    took_s = time.monotonic() - asked
    assert took_s < contended(5)
    assert_same(streams, expected, "drained")


def test_drain_on_the_admin_port(cluster: Cluster, client: httpx.Client, known: Known) -> None:
    calls = letters(6)
    expected = answers_to(calls, known, client, cluster)
    streams = start(client, cluster, calls)
    streams[0].wait_for_tokens(2, OVER_S)
    drained = cluster.holder()
    frontend = cluster.frontends[0]
    assert frontend.drain(drained.identity) == 202
    eventually(lambda: frontend.engines()[drained.identity]["num_inflight"] == 0, "no stream there", frontend.log)
    assert_same(streams, expected, "drained")
    assert (drained.is_alive, frontend.engines()[drained.identity]["state"]) == (True, "draining")
    drained.signal(signal.SIGTERM)
    drained.wait()


def test_streams_wait_for_the_replacement_of_the_only_engine(cluster: Cluster, client: httpx.Client) -> None:
    only, replacement = cluster.engines
    calls = every_kind("\x00")
    expected = run(client, cluster, calls)
    start_alone(cluster, only)
    streams = start(client, cluster, calls)
    streams[0].wait_for_tokens(5, OVER_S)
    only.kill()
    only.wait()
    frontend = cluster.frontends[0]
    eventually(lambda: streams[0].answer.num_comments > 0, "a keep-alive comment", frontend.log)
    assert frontend.load()["num_unplaced"] == sum(call.num_choices for call in calls)
    assert not any(stream.is_over for stream in streams)
    replacement.start()
    assert_same(streams, expected, "resumed on the replacement")


def test_a_killed_frontend_leaves_nothing_in_its_engine(
    tmp_path: Path, smollm2_folder: Path, client: httpx.Client, known: Known
) -> None:
    with Cluster(tmp_path, str(smollm2_folder), num_engines=1, engine_arguments=ENGINE_ARGUMENTS) as cluster:
        (frontend,), (engine,) = cluster.frontends, cluster.engines
        expected = answers_to(letters(1), known, client, cluster)
        pid = engine.pid
        for _ in range(2):
            orphans = [completion(f"orphan {i}", f"Orphan {i}", max_tokens=900) for i in range(8)]
            streams = start(client, cluster, orphans)
            for stream in streams:
                stream.wait_for_tokens(2, OVER_S)
            frontend.kill()
            for stream in streams:
                with pytest.raises(httpx.TransportError):
                    stream.result(OVER_S)
            frontend.start()
            cluster.wait_for_engines()
            wait_until_idle(cluster)
            assert frontend.metrics()[LATE_OUTPUTS] == 0
            assert_same(start(client, cluster, letters(1)), expected, "after the frontend came back")
        assert engine.is_alive
        assert engine.pid == pid


def test_a_stopped_engine_is_left_and_what_it_says_later_is_not_heard(
    cluster: Cluster, client: httpx.Client, known: Known
) -> None:
    calls = letters(6)
    expected = answers_to(calls, known, client, cluster)
    frontend = cluster.frontends[0]
    streams = start(client, cluster, calls)
    streams[0].wait_for_tokens(3, OVER_S)
    stopped = cluster.holder()
    asked = time.monotonic()
    stopped.signal(signal.SIGSTOP)
    try:
        eventually(lambda: stopped.identity not in frontend.engines(), "the stopped engine is left", frontend.log)
        took_s = time.monotonic() - asked
        moved = [stream for stream in streams if not stream.is_over]
    finally:
        stopped.signal(signal.SIGCONT)
    assert took_s < contended(3)
    assert moved
    assert_same(streams, expected, "resumed elsewhere")
    cluster.wait_for_engines()
    wait_until_idle(cluster)
    assert_same(start(client, cluster, calls), expected, "after it woke up")


def test_without_any_engine_a_request_waits_and_is_refused(impatient: Cluster, client: httpx.Client) -> None:
    (engine,) = impatient.engines
    if engine.is_alive:
        engine.kill()
        engine.wait()
    # What is sent to an engine in the moments before its end is seen waits as long as what it had.
    frontend = impatient.frontends[0]
    eventually(lambda: not frontend.engines(), "the loss is seen", frontend.log)
    sent = time.monotonic()
    refused = [stream for stream in start(client, impatient, [GREEDY, whole(GREEDY)]) if stream.result(OVER_S)]
    assert time.monotonic() - sent >= 1
    assert [stream.status for stream in refused] == [503, 503]
    assert [stream.headers["retry-after"] for stream in refused] == ["1", "1"]
    assert [(stream.answer.error or {})["code"] for stream in refused] == ["no_engine", "no_engine"]


def test_a_stream_whose_engine_is_not_replaced_ends_with_an_error_event(
    impatient: Cluster, client: httpx.Client
) -> None:
    start_what_is_down(impatient)
    (engine,) = impatient.engines
    (stream,) = start(client, impatient, [completion("long", "Count", max_tokens=900)])
    stream.wait_for_tokens(3, OVER_S)
    engine.kill()
    answer = stream.result(OVER_S)
    assert (stream.status, answer.is_whole) == (200, False)
    assert answer.error is not None
    assert (answer.error["type"], answer.error["code"]) == ("server_error", "engine_dead")


def test_a_request_that_kills_its_engines_is_given_up_and_no_other(
    faulty: ProxiedCluster, client: httpx.Client, known: Known
) -> None:
    calls = [completion(f"long letter {i}", f"Dear friend {i}, I write", max_tokens=96) for i in range(4)]
    expected = answers_to(calls, known, client, faulty)
    streams = start(client, faulty, calls)
    for stream in streams:
        stream.wait_for_tokens(1, OVER_S)
    pids = {engine.pid for engine in faulty.engines}
    (poison,) = start(client, faulty, [completion("poison", [100, KILLS, 200])])
    while not poison.is_over:
        start_what_is_down(faulty)
        pids |= {engine.pid for engine in faulty.engines}
    assert (poison.status, (poison.answer.error or {}).get("code")) == (500, "request_poisoned")
    start_what_is_down(faulty)
    # Some were known to have died only when it had killed the next one.
    num_killed = len(pids | {engine.pid for engine in faulty.engines}) - 2
    assert MAX_DEATHS <= num_killed <= MAX_LOSSES
    assert_same(streams, expected, "beside a poisonous request")


@pytest.mark.parametrize("token_id", [SLEEPS, HOLDS_GIL])
def test_a_busy_engine_is_not_lost(token_id: int, faulty: ProxiedCluster, client: httpx.Client, known: Known) -> None:
    frontend = faulty.frontends[0]
    (engine, other) = faulty.engines
    start_alone(faulty, engine)
    busy = completion("busy", [100, token_id, 200], max_tokens=4)
    expected = answers_to(letters(1), known, client, faulty)
    before = frontend.metrics()[LOST_ENGINES]
    streams = start(client, faulty, letters(1))
    streams[0].wait_for_tokens(3, OVER_S)
    sent = time.monotonic()
    (slow,) = run(client, faulty, [busy])
    assert time.monotonic() - sent >= BUSY_S
    assert slow.choices[0].finish_reason == "length"
    assert_same(streams, expected, "beside a busy step")
    assert frontend.metrics()[LOST_ENGINES] == before
    assert engine.is_alive
    assert not other.is_alive


@pytest.mark.parametrize(
    ("gate", "type_byte", "num_lost"),
    [
        pytest.param("to_frontend", OUTPUTS, 1, id="an output"),
        pytest.param("to_frontend", OUTPUTS, 8, id="outputs"),
        pytest.param("to_frontend", PONG, 1, id="a pong"),
        pytest.param("to_frontend", None, 8, id="anything to the frontend"),
        pytest.param("to_engine", ADD, 1, id="a request"),
        pytest.param("to_engine", None, 8, id="anything to the engine"),
    ],
)
def test_a_blip_loses_messages_and_no_request(
    gate: str, type_byte: bytes | None, num_lost: int, faulty: ProxiedCluster, client: httpx.Client, known: Known
) -> None:
    calls = letters(6)
    expected = answers_to(calls, known, client, faulty)
    streams = start(client, faulty, calls[:3])
    streams[0].wait_for_tokens(3, OVER_S)
    gates = [getattr(proxies[0], gate) for proxies in faulty.proxies.values()]
    before = [gate.num_dropped for gate in gates]
    for each in gates:
        each.drop(num_lost, type_byte)
    streams += start(client, faulty, calls[3:])
    assert_same(streams, expected, "messages were lost")
    dropped = [gate.num_dropped - count for gate, count in zip(gates, before, strict=True)]
    for each in gates:
        each.drop(0)
    assert sum(dropped) > 0
    wait_until_idle(faulty)


@pytest.mark.parametrize("way", ["cut", "silence"])
def test_a_cut_connection_moves_the_streams_and_comes_back(
    way: str, faulty: ProxiedCluster, client: httpx.Client, known: Known
) -> None:
    calls = letters(6)
    expected = answers_to(calls, known, client, faulty)
    frontend = faulty.frontends[0]
    streams = start(client, faulty, calls)
    streams[0].wait_for_tokens(3, OVER_S)
    lost = faulty.holder()
    (proxy,) = faulty.proxies[lost.identity]
    getattr(proxy, way)()
    eventually(lambda: lost.identity not in frontend.engines(), "the engine is left", frontend.log)
    assert_same(streams, expected, "resumed elsewhere")
    proxy.restore()
    faulty.wait_for_engines()
    wait_until_idle(faulty)
    assert_same(start(client, faulty, calls), expected, "after the connection came back")
