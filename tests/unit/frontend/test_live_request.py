from itertools import count

import msgspec
import pytest

from roundhouse.frontend.live_request import (
    NEARLY_DONE_TOKENS,
    TABLE,
    End,
    LiveRequest,
    Lose,
    Place,
    PlacementState,
    Resumed,
    capacity_of,
)
from roundhouse.frontend.loss import LossCause
from roundhouse.frontend.membership import Member
from roundhouse.frontend.suspicion import FruitlessLoss
from roundhouse.protocol.identity import EngineIndex, SessionId
from roundhouse.protocol.machine import InvalidTransition
from roundhouse.protocol.messages import EngineCoreOutput, EngineCoreRequest, PoolingParams
from roundhouse.protocol.sampling import FinishReason, SamplingParams
from tests.support.mesh import hello, request

_session_ids = count(1)


def new_member(identity: str = "a", **changes: object) -> Member:
    greeting = hello(identity, **changes)
    return Member(SessionId(next(_session_ids)), EngineIndex(0), identity.encode(), greeting, 2**26, heard_at=0.0)


def tokens(live: LiveRequest, *token_ids: int) -> EngineCoreOutput:
    return EngineCoreOutput(live.request_id, live.attempt, len(live.output_token_ids), list(token_ids))


def started(member: Member | None = None, *token_ids: int, **fields: object) -> LiveRequest:
    """Placed at 10 s and with its first tokens at 11 s."""
    live = LiveRequest(request(max_tokens=fields.pop("max_tokens", 20), **fields), 10.0)  # type: ignore[arg-type]
    live.place(member or new_member())
    live.take(tokens(live, *(token_ids or (7,))), 11.0)
    return live


PATHS: dict[PlacementState, list[type]] = {
    PlacementState.WAITING: [],
    PlacementState.PLACED: [Place],
    PlacementState.ENDED: [End],
}


@pytest.mark.parametrize("event", [Place, Lose, End])
@pytest.mark.parametrize("state", PlacementState)
def test_every_pair_does_what_the_table_says(state: PlacementState, event: type) -> None:
    machine = LiveRequest(request(), 0.0).machine
    for step in PATHS[state]:
        machine.move(step)
    after = TABLE.get((state, event))
    if after is None:
        with pytest.raises(InvalidTransition):
            machine.move(event)
    else:
        assert machine.move(event) == (state, after)


def test_what_the_table_forbids_changes_nobodys_count() -> None:
    a, b = new_member("a"), new_member("b")
    live = LiveRequest(request(), 0.0)
    with pytest.raises(InvalidTransition):
        live.lose(LossCause.DIED, 1.0)
    live.place(a)
    with pytest.raises(InvalidTransition):
        live.place(b)
    assert (live.member, live.attempt, a.num_inflight, b.num_inflight) == (a, 0, 1, 0)
    live.end()
    with pytest.raises(InvalidTransition):
        live.end()
    assert (live.member, a.num_inflight, b.num_inflight) == (None, 0, 0)


def test_the_first_engine_is_sent_the_request_itself_and_the_next_one_what_came_of_it() -> None:
    a, b, c = new_member("a"), new_member("b"), new_member("c")
    asked = request(max_tokens=20, data_parallel_rank=3, attempt=4, output_token_ids=[5])
    live = LiveRequest(asked, 10.0)
    assert live.place(a) is asked
    live.take(EngineCoreOutput("r", 4, 1, [6, 7]), 11.0)
    live.lose(LossCause.DIED, 12.0)
    assert (live.is_waiting, live.member, live.waits_since, a.num_inflight) == (True, None, 12.0, 0)
    second = msgspec.structs.replace(asked, attempt=5, output_token_ids=[5, 6, 7], data_parallel_rank=None)
    assert live.place(b) == second
    live.lose(LossCause.DRAINED, 13.0)
    assert live.place(c) == msgspec.structs.replace(second, attempt=6)
    assert (live.member, c.num_inflight, asked.output_token_ids) == (c, 1, [5])


def test_the_message_that_went_out_does_not_change_with_what_comes() -> None:
    live = started()
    live.lose(LossCause.DIED, 12.0)
    message = live.place(new_member("b"))
    live.take(tokens(live, 8), 13.0)
    assert (message.output_token_ids, live.output_token_ids) == ([7], [7, 8])


def test_what_was_never_sent_was_no_attempt_and_no_loss() -> None:
    a, b = new_member("a"), new_member("b")
    asked = request(max_tokens=20, data_parallel_rank=3)
    live = LiveRequest(asked, 10.0)
    live.place(a)
    live.lose(None, 10.0)
    assert (live.attempt, live.suspicion.losses, a.num_inflight) == (-1, [], 0)
    assert live.place(b) is asked
    live.lose(LossCause.DIED, 11.0)
    live.place(a)
    live.lose(None, 12.0)
    assert live.place(b).attempt == 1
    assert live.take(tokens(live, 7), 13.0) == Resumed(LossCause.DIED, 2.0, 3)


@pytest.mark.parametrize(
    ("output", "is_accepted"),
    [
        (EngineCoreOutput("r", 1, 2, [9]), True),
        (EngineCoreOutput("r", 1, 2, [], FinishReason.ABORT), True),
        (EngineCoreOutput("r", 1, 0, []), True),
        (EngineCoreOutput("r", 1, 1, [9]), False),
        (EngineCoreOutput("r", 0, 2, [9]), False),
        (EngineCoreOutput("r", 2, 2, [9]), False),
        (EngineCoreOutput("r", 0, 2, [], FinishReason.LENGTH), False),
    ],
)
def test_which_outputs_count(output: EngineCoreOutput, is_accepted: bool) -> None:
    a, b = new_member("a"), new_member("b")
    live = started(a, 7, 8)
    live.lose(LossCause.DIED, 12.0)
    assert not live.accept(a, output)
    live.place(b)
    assert live.accept(b, output) is is_accepted
    assert not live.accept(a, output)


def test_new_requests_rank_behind_those_that_began_and_each_by_its_arrival() -> None:
    def arrived(arrival_time: float, accepted_at: float) -> LiveRequest:
        asked = EngineCoreRequest("r", [1], SamplingParams(max_tokens=20), arrival_time)
        return LiveRequest(asked, accepted_at)

    late, early, same = arrived(5.0, 1.0), arrived(4.0, 2.0), arrived(4.0, 3.0)
    begun = arrived(9.0, 4.0)
    begun.place(new_member())
    begun.take(tokens(begun, 7), 11.0)
    assert sorted([late, same, begun, early], key=lambda live: live.rank) == [begun, early, same, late]
    assert (begun.rank, early.rank) == ((False, 9.0, 4.0), (True, 4.0, 2.0))


def test_what_no_token_came_of_fits_wherever_all_that_was_asked_for_has_room() -> None:
    live = LiveRequest(request(prompt=[1, 2, 3], max_tokens=20), 10.0)
    live.place(new_member())
    live.lose(LossCause.DIED, 12.0)
    assert live.fits(hello("b", resume_key="other", max_model_len=23))
    assert not live.fits(hello("b", resume_key="other", max_model_len=22))


def test_tokens_go_on_with_the_resume_key_they_came_with() -> None:
    live = LiveRequest(request(max_tokens=20), 10.0)
    live.place(new_member("a", resume_key="old"))
    live.lose(LossCause.DIED, 10.5)
    live.place(new_member("b", resume_key="new"))
    live.take(tokens(live, 7), 11.0)
    assert (live.fits(hello("c", resume_key="new")), live.fits(hello("c", resume_key="old"))) == (True, False)


@pytest.mark.parametrize(
    ("changes", "tokens_there"),
    [({}, 1584), ({"num_blocks": 2, "block_size": 8}, 8), ({"max_model_len": 1583}, 1583), ({"num_blocks": 1}, 0)],
)
def test_the_capacity_is_the_context_or_the_cache_without_its_null_block(
    changes: dict[str, int], tokens_there: int
) -> None:
    assert capacity_of(hello(**changes)) == tokens_there


@pytest.mark.parametrize(
    ("params", "first", "changes", "fits"),
    [
        (SamplingParams(max_tokens=97), {}, {"max_model_len": 100}, True),
        (SamplingParams(max_tokens=97), {}, {"max_model_len": 99}, False),
        (SamplingParams(max_tokens=97), {}, {"num_blocks": 8}, True),
        (SamplingParams(max_tokens=97), {}, {"num_blocks": 7}, False),
        (SamplingParams(max_tokens=97), {"max_model_len": 50}, {"max_model_len": 50}, True),
        (SamplingParams(max_tokens=97), {"max_model_len": 50}, {"max_model_len": 49}, False),
        (SamplingParams(max_tokens=None), {"max_model_len": 50}, {"max_model_len": 50}, True),
        (SamplingParams(max_tokens=None), {"max_model_len": 50}, {"max_model_len": 49}, False),
        (None, {}, {"max_model_len": 3}, True),
        (None, {}, {"max_model_len": 2}, False),
    ],
)
def test_tokens_go_on_where_there_is_room_for_all_or_no_less_than_they_had(
    params: SamplingParams | None, first: dict[str, int], changes: dict[str, int], fits: bool
) -> None:
    pooling = PoolingParams() if params is None else None
    live = LiveRequest(EngineCoreRequest("r", [1, 2, 3], params, 0.0, pooling_params=pooling), 10.0)
    live.place(new_member("a", **first))
    live.take(tokens(live, 7), 11.0)
    assert live.fits(hello("b", **changes)) is fits


def test_the_room_that_was_promised_is_the_first_engines() -> None:
    live = LiveRequest(request(max_tokens=2000), 10.0)
    live.place(new_member("a", max_model_len=50))
    live.take(tokens(live, 7), 11.0)
    live.lose(LossCause.DIED, 12.0)
    live.place(new_member("b", max_model_len=500))
    live.take(tokens(live, 8), 13.0)
    assert live.fits(hello("c", max_model_len=50))


def test_each_loss_speaks_against_it_until_a_token_comes() -> None:
    live = LiveRequest(request(max_tokens=20), 10.0)
    for token_ids in ([], []):
        live.place(new_member("a"))
        live.take(tokens(live, *token_ids), 11.0)
        live.lose(LossCause.DIED, 12.0)
    died = FruitlessLoss("a", (1, 1), is_death=True)
    assert (live.suspicion.losses, live.suspicion.is_suspect) == ([died, died], True)
    live.place(new_member("b"))
    live.take(tokens(live, 7), 13.0)
    assert live.suspicion.losses == []


def test_the_first_token_after_a_loss_tells_what_it_cost() -> None:
    live = started(None, 7, 8)
    live.lose(LossCause.UNREACHABLE, 12.5)
    live.place(new_member("b"))
    assert live.take(tokens(live), 13.0) is None
    assert live.take(tokens(live, 9), 14.0) == Resumed(LossCause.UNREACHABLE, 3.0, 5)
    assert live.take(tokens(live, 9), 15.0) is None
    assert live.output_token_ids == [7, 8, 9, 9]
    live.lose(LossCause.DRAINED, 15.5)
    live.place(new_member("c"))
    assert live.take(tokens(live, 9), 15.75) == Resumed(LossCause.DRAINED, 0.75, 7)


def test_without_a_token_before_the_gap_counts_from_the_first_loss_whose_cause_it_names() -> None:
    live = LiveRequest(request(max_tokens=20), 10.0)
    for cause, lost_at in ((LossCause.GAP, 12.0), (LossCause.DRAINED, 13.0)):
        live.place(new_member())
        live.lose(cause, lost_at)
    live.place(new_member("c"))
    assert live.take(tokens(live, 7), 14.0) == Resumed(LossCause.GAP, 2.0, 3)


def test_a_request_that_was_never_lost_resumes_nothing() -> None:
    live = LiveRequest(request(), 10.0)
    live.place(new_member())
    assert live.take(tokens(live, 7), 14.0) is None


@pytest.mark.parametrize(
    ("params", "num_tokens", "is_nearly_done"),
    [
        (SamplingParams(max_tokens=20), 20 - NEARLY_DONE_TOKENS - 1, False),
        (SamplingParams(max_tokens=20), 20 - NEARLY_DONE_TOKENS, True),
        (SamplingParams(max_tokens=None), 1000, False),
        (None, 0, False),
    ],
)
def test_nearly_done_by_the_tokens_that_may_still_come(
    params: SamplingParams | None, num_tokens: int, is_nearly_done: bool
) -> None:
    live = LiveRequest(EngineCoreRequest("r", [1, 2, 3], params, 0.0), 10.0)
    live.place(new_member())
    live.take(tokens(live, *range(num_tokens)), 11.0)
    assert live.is_nearly_done is is_nearly_done
