from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundhouse.frontend.engine_set import Effect, EngineSet, Lost, Refuse, Welcome
from roundhouse.frontend.loss import LossCause, Verdict
from roundhouse.frontend.membership import LOST_S, STALLED_S, Member, MembershipState
from roundhouse.protocol.identity import Peer
from roundhouse.protocol.messages import Admitted, Died, EngineCoreOutputs, Hello, Pong, Refused, SchedulerStats
from tests.support.mesh import admit, hello, routing_id_of


def new_set(**options: object) -> EngineSet:
    return EngineSet("frontend-1", count(1), **options)  # type: ignore[arg-type]


GONE = Verdict(LossCause.UNREACHABLE, "gone")


def refusal(engines: EngineSet, **changes: object) -> str:
    greeting = hello(nonce=9, **changes)
    engines.on_router_hello(routing_id_of(greeting), greeting, 0.0)
    (effect,) = engines.on_pull_hello(greeting, 0.0)
    assert isinstance(effect, Refuse)
    assert effect.routing_id == routing_id_of(greeting)
    return effect.refused.reason


def test_an_engine_is_admitted_when_both_halves_came() -> None:
    engines = new_set(frontends=["tcp://10.0.0.1:5570"])
    greeting = hello(max_message_bytes=2**20)
    assert engines.on_router_hello(routing_id_of(greeting), greeting, 0.0) == []
    assert engines.members() == []
    (effect,) = engines.on_pull_hello(greeting, 0.0)
    assert isinstance(effect, Welcome)
    assert effect.admitted == Admitted("frontend-1", 1, 0, 1, 2**20, ["tcp://10.0.0.1:5570"])
    assert engines.takers() == []
    effect.member.count_control_frame()
    assert engines.takers() == [effect.member]
    assert engines.get(1) is effect.member


def test_the_first_engine_names_the_model() -> None:
    engines = new_set()
    admit(engines, hello(model="a"))
    assert engines.model == "a"
    assert refusal(engines, identity="engine-1", model="b") == "model"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "other"}, "model"),
        ({"protocol_versions": [99]}, "protocol_version"),
        ({"protocol_versions": []}, "protocol_version"),
        ({"block_size": 0}, "hello"),
        ({"num_blocks": -1}, "hello"),
        ({"max_num_seqs": 0}, "hello"),
        ({"max_message_bytes": 1023}, "hello"),
    ],
)
def test_who_is_refused_and_why(changes: dict[str, object], reason: str) -> None:
    engines = new_set(model="echo")
    assert refusal(engines, **changes) == reason
    assert engines.members() == []


def test_a_newer_engine_and_this_frontend_speak_what_both_know() -> None:
    engines = new_set()
    greeting = hello(protocol_versions=[2, 1])
    engines.on_pull_hello(greeting, 0.0)
    (effect,) = engines.on_router_hello(routing_id_of(greeting), greeting, 0.0)
    assert isinstance(effect, Welcome)
    assert effect.admitted.protocol_version == 1


def test_halves_that_differ_are_refused() -> None:
    engines = new_set()
    greeting = hello()
    engines.on_router_hello(routing_id_of(greeting), greeting, 0.0)
    effects = engines.on_pull_hello(hello(num_blocks=5), 0.0)
    assert effects == [Refuse(routing_id_of(greeting), Refused("hello", "the Hellos by DEALER and by PUSH differ"))]


def test_a_higher_epoch_fences_the_lower_one_while_it_lives() -> None:
    engines = new_set()
    old = admit(engines, hello(nonce=1, epoch=(1, 5)))
    greeting = hello(nonce=2, epoch=(2, 0))
    engines.on_router_hello(routing_id_of(greeting), greeting, 0.0)
    lost, told, welcome = engines.on_pull_hello(greeting, 0.0)
    assert lost == Lost(old, Verdict(LossCause.REPLACED, "fenced by a higher epoch"))
    assert told == Refuse(old.routing_id, Refused("session_over", "fenced by a higher epoch"))
    assert isinstance(welcome, Welcome)
    assert (welcome.member.session_id, welcome.member.engine_index) == (2, 0)
    assert engines.members() == [welcome.member]
    assert refusal(engines, epoch=(1, 5)) == "fenced"
    engines.lose(welcome.member, GONE)
    assert admit(engines, hello(nonce=3, epoch=(1, 5))).hello.epoch == (1, 5)


def test_a_new_session_of_the_same_process_replaces_the_old_one() -> None:
    engines = new_set()
    old = admit(engines, hello(nonce=1))
    new = admit(engines, hello(nonce=2))
    assert (old.state, engines.members()) == (MembershipState.LOST, [new])
    assert engines.get(old.session_id) is None


def test_indexes_are_dense_and_come_back_to_their_engine() -> None:
    engines = new_set()
    a, b, c = (admit(engines, hello(name)) for name in "abc")
    assert [member.engine_index for member in (a, b, c)] == [0, 1, 2]
    engines.lose(a, GONE)
    engines.lose(b, GONE)
    assert admit(engines, hello("b", nonce=1)).engine_index == 1
    assert admit(engines, hello("d")).engine_index == 0
    assert admit(engines, hello("a", nonce=1)).engine_index == 3


def test_only_admitted_ones_take_requests() -> None:
    engines = new_set()
    a, b, c, d = (admit(engines, hello(name)) for name in "abcd")
    engines.drain(b)
    c.is_unreachable = True
    engines.lose(d, GONE)
    assert (engines.takers(), engines.members()) == ([a], [a, b, c])
    engines.judge(STALLED_S)
    assert engines.takers() == []
    ping = a.next_ping("frontend-1")
    assert ping is not None
    assert engines.on_pong(a, Pong(a.session_id, ping.ping_number, 0, 0, SchedulerStats()), 4.0) == []
    assert engines.takers() == [a]


def test_a_gap_ends_the_session_and_the_engine_is_told() -> None:
    engines = new_set()
    member = admit(engines, hello())
    outputs = EngineCoreOutputs(1, 0, (1, 1), sequence_number=2)
    reason = "output 2 came where 1 was due"
    assert engines.on_outputs(member, outputs) == [
        Lost(member, Verdict(LossCause.GAP, reason)),
        Refuse(member.routing_id, Refused("session_over", reason)),
    ]
    assert engines.members() == []


def test_an_output_of_another_epoch_or_index_ends_the_session() -> None:
    for wrong in (EngineCoreOutputs(1, 0, (1, 2), 1), EngineCoreOutputs(1, 1, (1, 1), 1)):
        engines = new_set()
        effects = engines.on_outputs(admit(engines, hello()), wrong)
        assert isinstance(effects[0], Lost)
        assert effects[0].verdict == Verdict(LossCause.GAP, "an output with another engine's index or epoch")


def test_last_words_are_the_reason() -> None:
    engines = new_set()
    member = admit(engines, hello())
    verdict = Verdict(LossCause.DIED, "the engine died: out of memory")
    assert engines.on_died(member, Died(1, "out of memory")) == [Lost(member, verdict)]
    assert engines.lose(member, GONE) == []


@pytest.mark.parametrize("cause", LossCause)
def test_whoever_said_that_it_leaves_has_left_however_it_ends(cause: LossCause) -> None:
    engines = new_set()
    member = admit(engines, hello())
    engines.drain(member)
    effects = engines.lose(member, Verdict(cause, "over"))
    assert effects == [
        Lost(member, Verdict(LossCause.DRAINED, "over")),
        Refuse(member.routing_id, Refused("session_over", "over")),
    ]
    assert (member.state, engines.members()) == (MembershipState.LEFT, [])


def test_silence_loses_all_at_once_and_names_the_cause() -> None:
    engines = new_set()
    members = [admit(engines, hello(name)) for name in "ab"]
    verdict = Verdict(LossCause.STALLED, "silent for 60 s")
    lost = [effect for effect in engines.judge(LOST_S) if isinstance(effect, Lost)]
    assert (lost, engines.members()) == ([Lost(member, verdict) for member in members], [])


def test_a_late_timer_restarts_all_deadlines() -> None:
    engines = new_set()
    admit(engines, hello("a"))
    admit(engines, hello("b"))
    engines.restart_deadlines(100.0)
    assert engines.judge(100.0) == []
    assert len(engines.takers()) == 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.booleans()), max_size=30))
@settings(max_examples=100)
def test_one_live_session_per_identity_and_never_a_lower_epoch_over_a_higher(
    steps: list[tuple[str, int, bool]],
) -> None:
    engines = new_set()
    for number, (name, granted, loses) in enumerate(steps):
        held = {member.hello.identity: member for member in engines.members()}
        if loses and name in held:
            engines.lose(held[name], GONE)
            continue
        greeting = hello(name, nonce=number, epoch=(granted, 0))
        engines.on_router_hello(routing_id_of(greeting), greeting, 0.0)
        effects = engines.on_pull_hello(greeting, 0.0)
        is_stale = name in held and held[name].hello.epoch > greeting.epoch
        assert isinstance(effects[-1], Refuse if is_stale else Welcome)
        members = engines.members()
        assert len({member.hello.identity for member in members}) == len(members)
        assert len({member.engine_index for member in members}) == len(members)
        assert all(member.engine_index < 3 for member in members)
        assert all(engines.get(member.session_id) is member for member in members)


OLD_KEY, NEW_KEY = Peer(1, "old"), Peer(1, "new")


def admit_by(engines: EngineSet, peer: Peer, greeting: Hello) -> tuple[list[Effect], Member]:
    """What happened before it was admitted, and its member."""
    engines.on_router_hello(routing_id_of(greeting), greeting, 0.0, peer)
    *before, welcome = engines.on_pull_hello(greeting, 0.0, peer)
    assert isinstance(welcome, Welcome)
    welcome.member.count_control_frame()
    return before, welcome.member


def test_a_session_by_another_key_of_the_same_process_ends_when_it_has_nothing_left() -> None:
    engines = new_set()
    _, old = admit_by(engines, OLD_KEY, hello(nonce=1))
    old.count_request()
    before, new = admit_by(engines, NEW_KEY, hello(nonce=2))
    assert before == []
    assert (engines.members(), engines.takers()) == ([old, new], [new])
    assert (old.engine_index, new.engine_index) == (0, 0)
    assert engines.dismiss_superseded() == []
    old.count_end()
    verdict = Verdict(LossCause.DRAINED, "the engine has a session by a newer key")
    told = Refuse(old.routing_id, Refused("session_over", verdict.reason), OLD_KEY)
    assert engines.dismiss_superseded() == [Lost(old, verdict), told]
    assert (old.state, engines.members()) == (MembershipState.LEFT, [new])


def test_a_session_by_the_same_key_still_replaces() -> None:
    engines = new_set()
    _, old = admit_by(engines, OLD_KEY, hello(nonce=1))
    before, new = admit_by(engines, OLD_KEY, hello(nonce=2))
    assert before[0] == Lost(old, Verdict(LossCause.REPLACED, "replaced by a new session"))
    assert engines.members() == [new]


def test_at_most_one_session_is_superseded() -> None:
    engines = new_set()
    _, first = admit_by(engines, OLD_KEY, hello(nonce=1))
    _, second = admit_by(engines, NEW_KEY, hello(nonce=2))
    before, third = admit_by(engines, Peer(2, "new"), hello(nonce=3))
    assert before[0] == Lost(first, Verdict(LossCause.REPLACED, "replaced by a new session"))
    assert (engines.members(), engines.takers()) == ([second, third], [third])


def test_a_higher_epoch_fences_the_superseded_one_too() -> None:
    engines = new_set()
    _, old = admit_by(engines, OLD_KEY, hello(nonce=1))
    _, new = admit_by(engines, NEW_KEY, hello(nonce=2))
    before, higher = admit_by(engines, NEW_KEY, hello(nonce=3, epoch=(2, 1)))
    assert [effect.member for effect in before if isinstance(effect, Lost)] == [old, new]
    assert engines.members() == [higher]


def test_a_superseded_session_is_in_charge_again_when_its_successor_is_lost() -> None:
    engines = new_set()
    _, old = admit_by(engines, OLD_KEY, hello(nonce=1))
    _, new = admit_by(engines, NEW_KEY, hello(nonce=2))
    engines.lose(new, GONE)
    assert engines.takers() == [old]
    assert engines.dismiss_superseded() == []
    assert refusal(engines, epoch=(0, 1)) == "fenced"


def test_nothing_is_said_to_a_revoked_key() -> None:
    engines = new_set()
    _, member = admit_by(engines, OLD_KEY, hello(nonce=1))
    verdict = Verdict(LossCause.REVOKED, "its key is no longer allowed")
    assert engines.lose(member, verdict, tell=False) == [Lost(member, verdict)]
