from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.key_plan import draw_key_events
from tests.chaos.plan import CALM_AT_END_S, CHANGES_KEYS, FIRST_S, ON_KEYS, Event, Kind, draw_events


def draw(seed: int, seconds: float = 900.0) -> list[Event]:
    return draw_key_events(seed, seconds, num_engines=3, num_frontends=2)


def draw_all(seed: int, seconds: float = 900.0) -> list[Event]:
    on_keys = draw(seed, seconds)
    return [*draw_events(seed, seconds, num_engines=3, num_frontends=2, others=on_keys), *on_keys]


def overlap(one: Event, other: Event) -> bool:
    return one.at_s <= other.at_s + other.lasts_s and other.at_s <= one.at_s + one.lasts_s


@given(st.integers(0, 2**32), st.floats(0, 1000))
def test_events_lie_between_the_start_and_the_calm_at_the_end_in_order(seed: int, seconds: float) -> None:
    events = draw(seed, seconds)
    assert all(event.at_s >= FIRST_S and event.at_s + event.lasts_s < seconds - CALM_AT_END_S for event in events)
    assert events == sorted(events, key=lambda event: event.at_s)


@given(st.integers(0, 2**32), st.floats(180, 1000))
def test_everything_happens_in_every_run_of_three_minutes(seed: int, seconds: float) -> None:
    assert {event.kind for event in draw(seed, seconds)} == ON_KEYS


@given(st.integers(0, 2**32))
def test_a_rotation_is_over_before_the_next_one(seed: int) -> None:
    events = draw(seed)
    servers = [event.kind for event in events if event.kind in (Kind.ROTATE_SERVER, Kind.RETIRE_SERVER)]
    assert servers == [Kind.ROTATE_SERVER, Kind.RETIRE_SERVER] * (len(servers) // 2)
    engines = [event for event in events if event.kind in (Kind.ROTATE_ENGINE, Kind.RETIRE_ENGINE)]
    for begun, ended in zip(engines[::2], engines[1::2], strict=True):
        assert (begun.kind, ended.kind, ended.engine) == (Kind.ROTATE_ENGINE, Kind.RETIRE_ENGINE, begun.engine)


@given(st.integers(0, 2**32))
def test_whose_key_is_revoked_and_whose_list_is_broken_has_no_second_trouble(seed: int) -> None:
    events = draw_all(seed)
    for revoked in (event for event in events if event.kind is Kind.REVOKE):
        meanwhile = [other for other in events if other is not revoked and overlap(revoked, other)]
        assert revoked.engine not in {other.engine for other in meanwhile}
    for broken in (event for event in events if event.kind is Kind.BROKEN_LIST):
        restarts = [other for other in events if other.kind is Kind.FRONTEND and other.frontend == broken.frontend]
        assert not any(overlap(broken, other) for other in restarts)


@given(st.integers(0, 2**32))
def test_one_engine_is_always_left_alone(seed: int) -> None:
    events = [event for event in draw_all(seed) if event.engine is not None and event.kind not in CHANGES_KEYS]
    for moment in (moment for event in events for moment in (event.at_s, event.at_s + event.lasts_s)):
        assert len({event.engine for event in events if event.at_s <= moment <= event.at_s + event.lasts_s}) <= 2


def test_a_seed_gives_one_plan() -> None:
    assert draw(0) == draw(0)
    assert draw(0) != draw(1)
