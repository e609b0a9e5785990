import asyncio

from roundhouse.frontend.probe import GAPS_S, Probe
from tests.support.fake_time_loop import run


def pings_after(*events_s: float) -> list[float]:
    """When pings leave, connections having ended at those times; in milliseconds."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        found: list[float] = []
        probe = Probe(loop.call_later, lambda: found.append(round((loop.time() - started) * 1000)))
        for at in events_s:
            loop.call_later(at, probe.on_disconnected)
        await asyncio.sleep(max(events_s) + 2 * sum(GAPS_S))
        return found

    return run(main())


def test_one_connection_that_ends_is_asked_about_four_times() -> None:
    assert pings_after(0) == [0, 20, 100, 300]


def test_many_at_once_are_one_series() -> None:
    assert pings_after(*[0] * 1000) == [0, 20, 40, 120, 320]


def test_a_later_one_is_asked_about_at_once_and_restarts_the_series() -> None:
    assert pings_after(0, 0.05) == [0, 20, 50, 70, 150, 350]
    assert pings_after(0, 1) == [0, 20, 100, 300, 1000, 1020, 1100, 1300]


def test_a_stream_of_events_neither_floods_nor_puts_off() -> None:
    found = pings_after(*(number / 1000 for number in range(200)))
    assert found == [*range(0, 201, 20), 220, 300, 500]
