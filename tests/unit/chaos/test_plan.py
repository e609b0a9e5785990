import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.plan import CALM_AT_END_S, ENDS_THE_PROCESS, FIRST_S, ON_A_LINK, ON_KEYS, Event, Kind, draw_events


def draw(seed: int, seconds: float = 900.0) -> list[Event]:
    return draw_events(seed, seconds, num_engines=3, num_frontends=2)


def is_on(event: Event, at_s: float) -> bool:
    return event.at_s <= at_s <= event.at_s + event.lasts_s


@given(st.integers(0, 2**32))
def test_one_engine_and_one_frontend_are_always_left_alone(seed: int) -> None:
    events = draw(seed)
    for event in events:
        for moment in (event.at_s, event.at_s + event.lasts_s):
            assert len({other.engine for other in events if other.engine is not None and is_on(other, moment)}) <= 2
    assert all(event.frontend == 1 for event in events if event.kind is Kind.FRONTEND)


@given(st.integers(0, 2**32))
def test_an_engine_has_one_trouble_at_a_time_and_engine_0_keeps_its_process(seed: int) -> None:
    for engine in range(3):
        events = [event for event in draw(seed) if event.engine == engine]
        assert all(a.at_s + a.lasts_s < b.at_s for a, b in itertools.pairwise(events))
        assert engine != 0 or all(event.kind not in ENDS_THE_PROCESS for event in events)


@given(st.integers(0, 2**32), st.floats(0, 1000))
def test_events_lie_between_the_start_and_the_calm_at_the_end(seed: int, seconds: float) -> None:
    assert all(FIRST_S <= event.at_s < seconds - CALM_AT_END_S for event in draw(seed, seconds))


@given(st.integers(0, 2**32))
def test_only_a_blip_counts_messages_and_only_links_and_frontends_name_a_frontend(seed: int) -> None:
    for event in draw(seed):
        assert (event.num_messages > 0) == (event.kind is Kind.BLIP)
        assert (event.engine is None) == (event.kind is Kind.FRONTEND)
        assert event.frontend is None or event.kind in ON_A_LINK | {Kind.FRONTEND}


def test_a_seed_gives_one_plan_in_which_everything_happens() -> None:
    events = draw(0)
    assert events == draw(0)
    assert events != draw(1)
    assert {event.kind for event in events} == set(Kind) - ON_KEYS
    assert len(events) > 100


def test_an_event_tells_what_it_is() -> None:
    assert str(Event(1.0, Kind.KILL, 1, None, 2.0)) == "kill -9 of e-1, 2.0 s"
    blip = Event(1.0, Kind.BLIP, 0, 1, 0.0, True, 3)
    assert str(blip) == "messages lost of e-0 at frontend-1, 3 to the engine, 0.0 s"
