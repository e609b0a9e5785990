import pytest

from roundhouse.frontend.live_request import Resumed
from roundhouse.frontend.live_requests import Accepted, WaitLimits
from roundhouse.frontend.loss import LossCause
from roundhouse.frontend.membership import STALLED_S
from roundhouse.protocol.errors import DuplicateRequestId, MessageTooLarge, NoEngine
from roundhouse.protocol.messages import (
    AbortRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    OutputError,
    Pong,
    SchedulerStats,
)
from roundhouse.protocol.sampling import FinishReason
from tests.support.mesh import request
from tests.support.mesh_dispatch import DispatchedMesh


def error_output(request_id: str, attempt: int, first: int, code: str, message: str) -> EngineCoreOutput:
    return EngineCoreOutput(request_id, attempt, first, [], FinishReason.ERROR, error=OutputError(code, message))


def assert_nothing_is_left(mesh: DispatchedMesh, *request_ids: str) -> None:
    assert not any(request_id in mesh.live for request_id in request_ids)
    assert (len(mesh.live), mesh.live.num_waiting) == (0, 0)
    assert set(mesh.inflight().values()) <= {0}


# Placing.


def test_requests_go_to_the_engine_with_the_least_to_do() -> None:
    mesh = DispatchedMesh()
    for name in "ab":
        mesh.join(name)
    asked = [request(f"r{number}", max_tokens=20) for number in range(4)]
    for each in asked:
        mesh.dispatcher.add(each)
    assert mesh.inflight() == {"a": 2, "b": 2}
    assert [message for _, message in mesh.sent] == asked


def test_a_live_id_is_refused_and_the_one_that_has_it_goes_on() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a")
    mesh.dispatcher.add(request("r", max_tokens=20))
    with pytest.raises(DuplicateRequestId):
        mesh.dispatcher.add(request("r", max_tokens=20))
    assert (mesh.inflight(), len(mesh.sent)) == ({"a": 1}, 1)
    last = EngineCoreOutput("r", 0, 0, [7], FinishReason.LENGTH)
    assert mesh.output(a, last) == Accepted(EngineCoreOutputs(outputs=[last]))
    assert_nothing_is_left(mesh, "r")
    mesh.dispatcher.add(request("r", max_tokens=20))
    assert mesh.inflight() == {"a": 1}


def test_an_engine_that_cannot_be_sent_to_is_skipped() -> None:
    mesh = DispatchedMesh()
    members = [mesh.join(name) for name in "ab"]
    mesh.gone.add("a")
    asked = [request(f"r{number}", max_tokens=20) for number in range(3)]
    for each in asked:
        mesh.dispatcher.add(each)
    assert mesh.sent == [("b", each) for each in asked]
    assert (mesh.inflight(), [member.is_taker for member in members]) == ({"a": 0, "b": 3}, [False, True])


def test_when_none_can_be_sent_to_a_request_waits_for_one_that_can() -> None:
    mesh = DispatchedMesh()
    for name in "ab":
        mesh.join(name)
    mesh.gone |= {"a", "b"}
    asked = request("r", max_tokens=20)
    mesh.dispatcher.add(asked)
    assert (mesh.sent, mesh.live.num_waiting, mesh.inflight()) == ([], 1, {"a": 0, "b": 0})
    mesh.join("c")
    assert (mesh.sent, mesh.inflight()) == ([("c", asked)], {"a": 0, "b": 0, "c": 1})


def test_a_request_that_is_too_large_for_its_engine_is_refused() -> None:
    mesh = DispatchedMesh()
    mesh.join("a")
    mesh.max_tokens_sent["a"] = 3
    with pytest.raises(MessageTooLarge):
        mesh.dispatcher.add(request("r", prompt=[1, 2, 3, 4]))
    assert_nothing_is_left(mesh, "r")
    mesh.dispatcher.add(request("r"))
    assert mesh.inflight() == {"a": 1}


# Waiting.


def test_requests_wait_while_there_is_no_engine_and_go_out_in_order_when_one_comes() -> None:
    mesh = DispatchedMesh()
    asked = [request(f"r{number}", max_tokens=20) for number in range(3)]
    for each in asked:
        mesh.dispatcher.add(each)
    assert (mesh.sent, mesh.live.num_waiting) == ([], 3)
    mesh.join("a")
    assert (mesh.sent, mesh.live.num_waiting, mesh.inflight()) == ([("a", each) for each in asked], 0, {"a": 3})


def test_one_more_than_may_wait_is_refused() -> None:
    mesh = DispatchedMesh(WaitLimits(max_waiting=1))
    mesh.dispatcher.add(request("r"))
    with pytest.raises(NoEngine, match="no engine takes requests now"):
        mesh.dispatcher.add(request("s"))
    assert ("r" in mesh.live, "s" in mesh.live, mesh.live.num_waiting) == (True, False, 1)


def test_what_waited_too_long_is_given_up() -> None:
    mesh = DispatchedMesh(WaitLimits(wait_s=5.0))
    mesh.dispatcher.add(request("r"))
    mesh.now += 4.99
    mesh.dispatcher.on_tick()
    assert mesh.given_up == []
    mesh.now += 0.01
    mesh.dispatcher.on_tick()
    assert mesh.given_up == [error_output("r", 0, 0, "no_engine", "no engine takes requests now")]
    assert_nothing_is_left(mesh, "r")
    mesh.join("a")
    assert mesh.sent == []


def test_an_aborted_request_that_waits_is_sent_to_nobody() -> None:
    mesh = DispatchedMesh()
    mesh.dispatcher.add(request("r"))
    mesh.dispatcher.abort(["r", "unknown"])
    mesh.join("a")
    assert mesh.sent == []
    assert_nothing_is_left(mesh, "r")


def test_an_engine_that_is_stalled_gets_nothing_until_it_is_heard() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a")
    mesh.dispatcher.add(request("held", max_tokens=20))
    ping = a.next_ping("frontend-1")
    assert ping is not None
    mesh.engines.judge(mesh.now + STALLED_S)
    asked = request("r", max_tokens=20)
    mesh.dispatcher.add(asked)
    assert (mesh.inflight(), mesh.live.num_waiting) == ({"a": 1}, 1)
    mesh.engines.on_pong(a, Pong(a.session_id, ping.ping_number, 1, 0, SchedulerStats()), mesh.now + STALLED_S)
    mesh.dispatcher.on_taker()
    assert (mesh.sent[-1], mesh.inflight()) == (("a", asked), {"a": 2})


# Ranks.


def test_a_pinned_request_goes_to_its_engine_or_is_refused() -> None:
    mesh = DispatchedMesh()
    for name in "ab":
        mesh.join(name)
    for number in range(3):
        mesh.dispatcher.add(request(f"r{number}", data_parallel_rank=1))
    assert mesh.inflight() == {"a": 0, "b": 3}
    with pytest.raises(NoEngine, match="no engine with index 2 takes requests now"):
        mesh.dispatcher.add(request("s", data_parallel_rank=2))
    assert "s" not in mesh.live


def test_a_pinned_request_whose_engine_cannot_be_sent_to_does_not_go_elsewhere() -> None:
    mesh = DispatchedMesh()
    for name in "ab":
        mesh.join(name)
    mesh.gone.add("a")
    with pytest.raises(NoEngine, match="no engine with index 0 takes requests now"):
        mesh.dispatcher.add(request("r", data_parallel_rank=0))
    assert mesh.sent == []
    assert_nothing_is_left(mesh, "r")


def test_a_pin_does_not_outlive_its_engine() -> None:
    mesh = DispatchedMesh()
    a, _ = mesh.join("a"), mesh.join("b")
    mesh.dispatcher.add(request("r", data_parallel_rank=0))
    mesh.lose(a)
    assert mesh.sent[-1] == ("b", request("r", attempt=1))


# Losses.


def test_a_stream_of_a_lost_engine_goes_on_elsewhere() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a")
    mesh.dispatcher.add(request("r", max_tokens=20))
    b = mesh.join("b")
    mesh.now = 101.0
    mesh.output(a, EngineCoreOutput("r", 0, 0, [7, 8]))
    mesh.take_sent()
    mesh.now = 102.0
    mesh.lose(a, LossCause.DIED)
    assert mesh.take_sent() == [("b", request("r", max_tokens=20, attempt=1, output_token_ids=[7, 8]))]
    assert (mesh.inflight(), a.num_inflight) == ({"b": 1}, 0)
    assert mesh.output(a, EngineCoreOutput("r", 0, 2, [9])).num_late == 1
    mesh.now = 103.5
    last = EngineCoreOutput("r", 1, 2, [9], FinishReason.LENGTH)
    resumed = Resumed(LossCause.DIED, 2.5, 5)
    assert mesh.output(b, last) == Accepted(EngineCoreOutputs(outputs=[last]), resumed=[resumed])
    assert (mesh.resumed, mesh.given_up) == ([resumed], [])
    assert_nothing_is_left(mesh, "r")


def test_with_no_engine_left_a_stream_waits_for_one_that_can_go_on() -> None:
    mesh = DispatchedMesh(WaitLimits(wait_s=5.0, resume_s=60.0))
    a = mesh.join("a", resume_key="k")
    for name in ("begun", "new"):
        mesh.dispatcher.add(request(name, max_tokens=20))
    mesh.output(a, EngineCoreOutput("begun", 0, 0, [7]))
    mesh.take_sent()
    mesh.lose(a)
    assert (mesh.take_sent(), mesh.live.num_waiting) == ([], 2)
    mesh.join("other", resume_key="x")
    assert mesh.take_sent() == [("other", request("new", max_tokens=20, attempt=1))]
    mesh.join("small", resume_key="k", max_model_len=22)
    assert mesh.take_sent() == []
    mesh.join("b", resume_key="k")
    assert mesh.take_sent() == [("b", request("begun", max_tokens=20, attempt=1, output_token_ids=[7]))]
    assert (mesh.live.num_waiting, mesh.given_up) == (0, [])


def test_begun_streams_go_out_ahead_of_new_requests() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a")
    for name in ("r", "s", "t"):
        mesh.dispatcher.add(request(name, max_tokens=20))
        mesh.now += 1
    mesh.output(a, EngineCoreOutput("t", 0, 0, [7]), EngineCoreOutput("s", 0, 0, [8]))
    mesh.lose(a)
    mesh.dispatcher.add(request("new", max_tokens=20))
    mesh.take_sent()
    mesh.join("b")
    assert mesh.take_sent() == [
        ("b", request("s", max_tokens=20, attempt=1, output_token_ids=[8])),
        ("b", request("t", max_tokens=20, attempt=1, output_token_ids=[7])),
        ("b", request("r", max_tokens=20, attempt=1)),
        ("b", request("new", max_tokens=20)),
    ]


def test_a_stream_that_nobody_came_for_ends_behind_its_last_token() -> None:
    mesh = DispatchedMesh(WaitLimits(wait_s=5.0, resume_s=60.0))
    a = mesh.join("a")
    mesh.dispatcher.add(request("r", max_tokens=20))
    mesh.output(a, EngineCoreOutput("r", 0, 0, [7, 8]))
    mesh.lose(a)
    mesh.now += 59.9
    mesh.dispatcher.on_tick()
    assert mesh.given_up == []
    mesh.now += 0.1
    mesh.dispatcher.on_tick()
    message = "the engine of this request is lost, and none that could go on with it came"
    assert mesh.given_up == [error_output("r", 0, 2, "engine_dead", message)]
    assert_nothing_is_left(mesh, "r")


def test_a_request_that_kills_engine_after_engine_is_given_up_and_the_rest_live() -> None:
    mesh = DispatchedMesh()
    mesh.dispatcher.add(request("bad", max_tokens=20))
    for name in "abc":
        member = mesh.join(name)
        assert member.num_inflight == 1
        mesh.lose(member, LossCause.DIED)
    message = "3 engines were lost while they had this request and gave no token; the last one, c: gone"
    assert mesh.given_up == [error_output("bad", 2, 0, "request_poisoned", message)]
    mesh.take_sent()
    mesh.join("d")
    assert mesh.take_sent() == []
    assert_nothing_is_left(mesh, "bad")


def test_what_kills_its_engines_takes_nobody_with_it() -> None:
    """Engines die with the bad request before anybody there got a token, which is the worst that it can do."""
    mesh = DispatchedMesh()
    started: list[str] = []
    names = [f"r{number}" for number in range(6)]
    for name in "ab":
        mesh.join(name)
    for name in [*names[:3], "bad", *names[3:]]:
        mesh.dispatcher.add(request(name, max_tokens=20))
    for number in range(40):
        placed = {live.request_id: live for m in mesh.engines.members() for live in mesh.live.placed_with(m)}
        if "bad" in placed:
            mesh.lose(placed["bad"].member)
            mesh.join(f"engine {number}")
        elif due := [live for name, live in placed.items() if name not in started]:
            started.append(due[0].request_id)
            mesh.output(due[0].member, EngineCoreOutput(due[0].request_id, due[0].attempt, 0, [7]))
    assert [output.request_id for output in mesh.given_up] == ["bad"]
    assert sorted(started) == names
    assert mesh.live.num_waiting == 0


def test_suspects_go_on_one_to_an_engine_and_the_next_when_a_token_cleared_one() -> None:
    mesh = DispatchedMesh()
    for name in ("r", "s", "t"):
        mesh.dispatcher.add(request(name, max_tokens=20))
    for name in "ab":
        mesh.lose(mesh.join(name), LossCause.DIED)
    mesh.take_sent()
    c = mesh.join("c")
    assert mesh.take_sent() == [("c", request("r", max_tokens=20, attempt=2))]
    assert mesh.live.num_waiting == 2
    mesh.dispatcher.add(request("new", max_tokens=20))
    assert mesh.take_sent() == [("c", request("new", max_tokens=20))]
    mesh.output(c, EngineCoreOutput("r", 2, 0, [7]))
    assert mesh.take_sent() == [("c", request("s", max_tokens=20, attempt=2))]
    mesh.join("d")
    assert mesh.take_sent() == [("d", request("t", max_tokens=20, attempt=2))]


def test_a_suspect_that_was_aborted_makes_room_at_the_next_tick() -> None:
    mesh = DispatchedMesh()
    for name in ("r", "s"):
        mesh.dispatcher.add(request(name, max_tokens=20))
    for name in "abc":
        member = mesh.join(name)
        if name != "c":
            mesh.lose(member, LossCause.DIED)
    mesh.dispatcher.abort(["r"])
    mesh.take_sent()
    mesh.dispatcher.on_tick()
    assert mesh.take_sent() == [("c", request("s", max_tokens=20, attempt=2))]


def test_a_stream_that_grew_too_large_for_every_engine_ends_alone() -> None:
    mesh = DispatchedMesh()
    a, b = mesh.join("a"), mesh.join("b")
    for name in ("r", "s"):
        mesh.dispatcher.add(request(name, max_tokens=20, data_parallel_rank=0))
    mesh.output(a, EngineCoreOutput("r", 0, 0, [7, 8]), EngineCoreOutput("s", 0, 0, [7]))
    mesh.max_tokens_sent["b"] = 4
    mesh.take_sent()
    mesh.lose(a)
    assert mesh.given_up == [error_output("r", 0, 2, "message_too_large", "5 tokens")]
    assert mesh.take_sent() == [("b", request("s", max_tokens=20, attempt=1, output_token_ids=[7]))]
    assert (b.num_inflight, len(mesh.live), mesh.live.num_waiting) == (1, 1, 0)


# Aborts.


def test_an_abort_goes_to_those_who_hold_the_requests() -> None:
    mesh = DispatchedMesh()
    for name in "ab":
        mesh.join(name)
    for name, rank in (("r", 0), ("s", 1), ("t", 0)):
        mesh.dispatcher.add(request(name, data_parallel_rank=rank))
    mesh.take_sent()
    mesh.dispatcher.abort(["t", "unknown", "s", "r"])
    assert mesh.take_sent() == [("a", AbortRequests(["t", "r"])), ("b", AbortRequests(["s"]))]
    assert_nothing_is_left(mesh, "r", "s", "t")
    mesh.dispatcher.abort(["r"])
    assert mesh.take_sent() == []


def test_an_abort_that_is_too_large_for_one_message_goes_out_in_several() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a")
    names = [f"r{number}" for number in range(5)]
    for name in names:
        mesh.dispatcher.add(request(name, max_tokens=20))
    mesh.max_ids_sent = 2
    mesh.take_sent()
    mesh.dispatcher.abort(names[:3])
    assert mesh.take_sent() == [("a", AbortRequests(["r0"])), ("a", AbortRequests(["r1", "r2"]))]
    mesh.max_ids_sent = 1
    mesh.join("b")
    mesh.drain(a)
    assert mesh.take_sent() == [
        ("a", AbortRequests(["r3"])),
        ("a", AbortRequests(["r4"])),
        ("b", request("r3", max_tokens=20, attempt=1)),
        ("b", request("r4", max_tokens=20, attempt=1)),
    ]


def test_an_abort_at_an_engine_that_cannot_be_sent_to_forgets_all_the_same() -> None:
    mesh = DispatchedMesh()
    mesh.join("a")
    mesh.dispatcher.add(request("r"))
    mesh.gone.add("a")
    mesh.dispatcher.abort(["r"])
    assert_nothing_is_left(mesh, "r")


# Drains.


def test_a_drain_moves_what_is_not_nearly_done() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a")
    mesh.dispatcher.add(request("long", max_tokens=20))
    mesh.dispatcher.add(request("short", max_tokens=9))
    mesh.output(a, EngineCoreOutput("short", 0, 0, [5]), EngineCoreOutput("long", 0, 0, [7, 8]))
    b = mesh.join("b")
    mesh.take_sent()
    mesh.drain(a)
    assert mesh.take_sent() == [
        ("a", AbortRequests(["long"])),
        ("b", request("long", max_tokens=20, attempt=1, output_token_ids=[7, 8])),
    ]
    assert mesh.inflight() == {"a": 1, "b": 1}
    late = mesh.output(a, EngineCoreOutput("long", 0, 2, [9]), EngineCoreOutput("short", 0, 1, [6]))
    assert late == Accepted(EngineCoreOutputs(outputs=[EngineCoreOutput("short", 0, 1, [6])]), num_late=1)
    mesh.now += 1.0
    mesh.output(b, EngineCoreOutput("long", 1, 2, [9]))
    assert mesh.resumed == [Resumed(LossCause.DRAINED, 1.0, 5)]
    mesh.output(a, EngineCoreOutput("short", 0, 2, [], FinishReason.STOP))
    mesh.lose(a)
    assert (mesh.inflight(), mesh.take_sent(), mesh.given_up) == ({"b": 1}, [], [])


def test_what_fits_nowhere_else_stays_until_an_engine_comes_that_takes_it() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a", resume_key="k")
    mesh.dispatcher.add(request("begun", max_tokens=20))
    mesh.dispatcher.add(request("new", max_tokens=20))
    mesh.output(a, EngineCoreOutput("begun", 0, 0, [7]))
    mesh.take_sent()
    mesh.drain(a)
    assert (mesh.take_sent(), mesh.inflight()) == ([], {"a": 2})
    mesh.join("other", resume_key="x")
    assert mesh.take_sent() == [("a", AbortRequests(["new"])), ("other", request("new", max_tokens=20, attempt=1))]
    mesh.output(a, EngineCoreOutput("begun", 0, 1, [8]))
    mesh.join("b", resume_key="k")
    assert mesh.take_sent() == [
        ("a", AbortRequests(["begun"])),
        ("b", request("begun", max_tokens=20, attempt=1, output_token_ids=[7, 8])),
    ]
    assert (mesh.inflight(), mesh.live.num_waiting) == ({"a": 0, "other": 1, "b": 1}, 0)


def test_what_a_leaving_engine_gives_back_goes_on_elsewhere() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a")
    mesh.dispatcher.add(request("r", max_tokens=9))
    mesh.output(a, EngineCoreOutput("r", 0, 0, [7]))
    b = mesh.join("b")
    mesh.drain(a)
    mesh.take_sent()
    end = EngineCoreOutput("r", 0, 1, [8], FinishReason.ABORT)
    assert mesh.output(a, end).outputs.outputs == [EngineCoreOutput("r", 0, 1, [8])]
    assert mesh.take_sent() == [("b", request("r", max_tokens=9, attempt=1, output_token_ids=[7, 8]))]
    mesh.lose(a)
    assert (mesh.inflight(), mesh.take_sent(), b.num_inflight) == ({"b": 1}, [], 1)


def test_what_is_moved_to_an_engine_that_turns_out_to_be_gone_waits() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a")
    mesh.dispatcher.add(request("r", max_tokens=20))
    mesh.join("b")
    mesh.gone.add("b")
    mesh.take_sent()
    mesh.drain(a)
    assert (mesh.take_sent(), mesh.live.num_waiting) == ([("a", AbortRequests(["r"]))], 1)
    mesh.join("c")
    assert mesh.take_sent() == [("c", request("r", max_tokens=20, attempt=1))]


def test_nothing_is_placed_on_an_engine_that_was_not_sent_its_admission() -> None:
    mesh = DispatchedMesh()
    a = mesh.join("a")
    mesh.dispatcher.add(request("r", max_tokens=20))
    b = mesh.join("b")
    b.control_number = 0
    mesh.take_sent()
    mesh.lose(a)
    assert (mesh.take_sent(), mesh.live.num_waiting) == ([], 1)
    b.count_control_frame()
    mesh.dispatcher.on_taker()
    assert mesh.take_sent() == [("b", request("r", max_tokens=20, attempt=1))]


def test_a_suspect_that_another_one_keeps_out_does_not_wait_in_vain() -> None:
    mesh = DispatchedMesh()
    for name in ("r", "s"):
        mesh.dispatcher.add(request(name, max_tokens=20))
    for name in "ab":
        mesh.lose(mesh.join(name), LossCause.DIED)
    c = mesh.join("c")
    for _ in range(10):
        mesh.now += mesh.live.limits.resume_s / 2
        mesh.dispatcher.on_tick()
    assert (mesh.given_up, mesh.live.num_waiting) == ([], 1)
    mesh.output(c, EngineCoreOutput("r", 2, 0, [7]))
    assert mesh.live.num_waiting == 0
